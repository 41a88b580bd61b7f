"""``python inspect_task.py QUESTIONS URL FOLDER``: query a server as inspect-ai does; print its scores of the answers."""

import json
import sys
from pathlib import Path

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

questions, url, folder = sys.argv[1:]
rows = [json.loads(line) for line in Path(questions).read_text().splitlines()]
samples = [Sample(input=row["question"], target=f"boxed{{{row['answer']}") for row in rows]
config = GenerateConfig(temperature=0, seed=1234, max_tokens=160, max_connections=3)
model = get_model("openai-api/semspec/embedded/tiny-target", base_url=f"{url}/v1", api_key="none")
task = Task(dataset=samples, solver=generate(), scorer=includes(), config=config)
(log,) = evaluate(task, model=model, log_dir=folder, display="none")
assert log.status == "success", log.error
assert log.results is not None and log.samples is not None
(usage,) = log.stats.model_usage.values()
answers = []
for sample in log.samples:
    content = sample.output.message.content
    assert not isinstance(content, str), "the thinking is not told apart"
    thought = [part.reasoning for part in content if part.type == "reasoning"]
    answers.append([sample.input, thought, sample.output.message.text])
accuracy = log.results.scores[0].metrics["accuracy"].value
print(json.dumps({"accuracy": accuracy, "usage": usage.model_dump(), "answers": answers}))
