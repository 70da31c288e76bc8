"""One more keyword in an application that already uses a pipeline."""

from transformers import pipeline

import hf_lossy_assist
from hf_lossy_assist import pairs

pair = pairs.load("arithmetic")
questions = [example.prompt for example in pair.task.examples("test", 4)[1:]]

pipe = pipeline("text-generation", model=pair.target, assistant_model=pair.draft, tokenizer=pair.tokenizer)
with hf_lossy_assist.enabled(pipe.model):
    for question in questions:
        answer = pipe(
            question,
            lossy_mode="min_p",
            lossy_config={"tau": 0.3},
            max_new_tokens=160,
            do_sample=False,
            return_full_text=False,
        )
        print(question, answer[0]["generated_text"])
        print(f"  {hf_lossy_assist.last_stats(pipe.model).mean_accepted:.1f} drafted tokens kept a round\n")
