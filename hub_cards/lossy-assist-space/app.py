"""Two acceptance rules of lossy speculative decoding side by side; the code is in the package hf_lossy_assist."""

from hf_lossy_assist.inspection.space import app

if __name__ == "__main__":
    app().queue(default_concurrency_limit=1).launch()
