"""Certify a server: is what it writes distributed as the model's own text? One file for each question.

laws         the model's next-token distributions, and cells of the next k tokens
statistics   chi-square tests, evidence that may be looked at at any time, and what they would have found
endpoints/   what is certified, and what it is held against
sampled      drawn tokens against the law, or against a reference server's
greedy       token for token
certificate  the parts together, and the verdict
record       the folder of a certificate: resumed after a kill
page         the certificate as HTML
"""
