"""Certify a server: is its output distributed as the model's own? One file per question.

laws         the model's next-token distributions, and cells of the next k tokens
statistics   chi-square tests, evidence that may be checked at any time, and the faults they can detect
endpoints/   servers and models that are certified or serve as reference
sampled      drawn tokens compared with the model's distribution, or with a reference server's tokens
greedy       greedy text, token for token
relaxed      servers that are relaxed on purpose: equivalence within a margin
certificate  all parts together, and the verdict
record       the folder of a certificate, resumed after a kill
page         the certificate as HTML
"""
