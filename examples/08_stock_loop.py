"""The same rules without `enable`: inside transformers' own assisted generation, as a logits processor."""

from hf_lossy_assist import LossyVerification, pairs

pair = pairs.load("arithmetic")
question = pair.task.examples("test", 2)[1]
inputs = pair.tokenizer(question.prompt, return_tensors="pt")
settings = {"assistant_model": pair.draft, "do_sample": False, "max_new_tokens": 160}

# Rules that read the target alone work with every drafter of transformers.
with LossyVerification("min_p", pair.target, tau=0.4) as hook:
    ids = pair.target.generate(**inputs, **settings, logits_processor=[hook])
print("min_p:", pair.tokenizer.decode(ids[0], skip_special_tokens=True))
print(f"  {hook.stats.mean_accepted:.1f} drafted tokens kept a round")

# Rules that read the draft's distribution q need this package's drafter: pass the assistant to LossyVerification.
with LossyVerification("dropmatch", pair.target, assistant_model=pair.draft, num_assistant_tokens=8) as hook:
    ids = pair.target.generate(**inputs, **settings, logits_processor=[hook])
print("dropmatch:", pair.tokenizer.decode(ids[0], skip_special_tokens=True))
print(f"  {hook.stats.mean_accepted:.1f} drafted tokens kept a round")
