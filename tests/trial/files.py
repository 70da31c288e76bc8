"""Files of others, heads and texts of requests, with something wrong in them: they are read, or the cause is named."""

from __future__ import annotations

import gzip
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random

from hf_lossy_assist import JudgeHead, LossyError, VerifierHead, tasks
from hf_lossy_assist.evaluation.answers import Answer, AnswerStore, load_answers
from hf_lossy_assist.generation.certificate import Certificate
from hf_lossy_assist.generation.drafters.eagle3 import Eagle3
from hf_lossy_assist.heads import Head
from hf_lossy_assist.integrations.vllm.settings import Drafting, EngineSettings
from tests.acceptors.fixtures import HEADS
from tests.eagle3_heads import random_head, write_legacy
from tests.tiny_models import tiny

STRANGE = (
    "null", "true", "-1", "0.5", "1e400", "NaN", '"x"', '"\\ud800"', '"\\u001b]0;x\\u0007"', "[]", "[[]]", "{}",
    '{"a": 1}', "9" * 5000, "[" * 100_000 + "]" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000, '"' + "A" * 100_000 + '"',
    str(2**70), "16777216", '"F64"', '"../../x"', '"~nosuchuser/x"',
)  # fmt: skip
ROW = {"question": "Q", "answer": "#### 1", "prompt": "P", "response": "R", "spans": [[0, 1]], "turns": ["T"], "k": 3}
ANSWERS = [asdict(Answer("a", i, 1.0, 4, 2, 2, 0.5, "yes")) for i in range(2)]
PLAN = {"task": "t", "seed": 0, "modes": {"a": {}}, "problems": [7, 8], "runs": [{}]}


def files(seed: int, count: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """Damaged and hostile files of every kind, and fields of requests."""
    r = Random(seed)
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        write_legacy(random_head(), base / "eagle3", specforge=True)
        AnswerStore(base / "answers", PLAN)
        settings = EngineSettings.read({}, Drafting("ngram", 5, keeps_probs=False))
        plan = (base / "answers" / "manifest.json").read_bytes()
        rows = "\n".join(map(json.dumps, ANSWERS)).encode() + b"\n"
        eagle3 = (base / "eagle3" / "config.json").read_bytes()
        row = json.dumps(ROW).encode()

        def folder(place: str, file: str, others: dict[str, bytes], read: Callable[[Path], object], wrap=bytes):
            (base / place).mkdir(exist_ok=True)

            def with_file(content: bytes) -> None:
                for other, own in others.items():
                    (base / place / other).write_bytes(own)

                (base / place / file).write_bytes(wrap(content))
                read(base / place)

            return with_file

        def file(ending: str, read: Callable[[str], object]) -> Callable[[bytes], None]:
            path = base / f"x{ending}"
            return lambda content: (path.write_bytes(content), read(str(path)))

        def prompts(path: str) -> object:
            return tasks.load("prompts", path)

        readers: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
            "prompts.txt": (b"One\nTwo\n", file(".txt", prompts)),
            "prompts.jsonl": (row, file(".jsonl", prompts)),
            "prompts.json": (b"[" + row + b"]", file(".json", prompts)),
            "prompts.jsonl.gz": (row, lambda content: file(".jsonl.gz", prompts)(gzip.compress(content))),
            "prompts.gz": (gzip.compress(row, mtime=0), file(".gz", prompts)),
            "gsm8k": (row, file(".jsonl", lambda path: tasks.load("gsm8k", path).examples("test", 9))),
            "answers": (rows, folder("answers", "results.jsonl", {"manifest.json": plan}, load_answers)),
            "manifest": (plan, folder("answers", "manifest.json", {}, lambda x: AnswerStore(x, PLAN))),
            "certificate": (b'{"tested": [], "task": "t"}', folder("c", "certificate.json", {}, Certificate.load)),
            "eagle3": (eagle3, folder("eagle3", "config.json", {}, Eagle3.from_pretrained)),
            "a request": (
                b'{"lossy_mode": "topk", "lossy_config": {"k": 3, "scope": {"start": 1, "end": 2}}}',
                lambda content: settings.check_request(
                    {"lossy_mode": "topk", "lossy_config": content.decode(errors="replace")}, 0.0
                ),
            ),
            "a mode": (
                b"topk+typical@3:topk.k=3:seed=0",
                lambda content: settings.check_request({"lossy_mode": content.decode(errors="replace")}, 0.0),
            ),
        }

        target = tiny()
        for kind, head in HEADS.items():
            head(target, target).save_pretrained(base / kind)
            own = {path.name: path.read_bytes() for path in (base / kind).iterdir()}
            config = json.loads(own["config.json"])
            config.pop("weights_sha256")  # which would tell damaged weights apart before they are read
            own["config.json"], weights = json.dumps(config).encode(), own["model.safetensors"]
            header, values = weights[8 : (end := 8 + int.from_bytes(weights[:8], "little"))], weights[end:]
            for part in own:
                readers[f"{kind}, {part}"] = own[part], folder(kind, part, own, read_head)
            readers[f"{kind}, header"] = (
                header,
                folder(
                    kind, "model.safetensors", own, read_head, lambda x, y=values: len(x).to_bytes(8, "little") + x + y
                ),
            )

        def check(read: Callable[[bytes], object], content: bytes) -> str:
            said = ""
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    read(content)
            except LossyError as error:
                said = str(error)
            assert len(said) < 5000
            assert not {*said} & {*"\x1b\x07\x9b"}
            return "refused by name" if said else "read"

        for number in range(count):
            kind = r.choice(sorted(readers))
            good, read = readers[kind]
            content = hostile(good, r)
            yield f"{seed}.{number} {kind} {content[:80]!r}", lambda read=read, content=content: check(read, content)


def read_head(folder: Path) -> None:
    """Read a head as one of any kind, which refuse one of another kind; what is read is finite."""
    errors = []
    for read in (Head.from_pretrained, JudgeHead.from_pretrained, VerifierHead.from_pretrained):
        try:
            head = read(folder)
        except LossyError as error:
            errors.append(error)
        else:
            assert head.weight.isfinite().all()
            assert head.bias.isfinite()
    if len(errors) == 3:
        raise errors[0]


def hostile(good: bytes, r: Random) -> bytes:
    """Return a file of which a value, some bytes or the end is another."""
    kind = r.choice(["value", "value", "value", "bytes", "cut", "twice"])
    if kind == "value":
        starts = [i for i, byte in enumerate(good) if byte in b':,["'] or [0]
        start = r.choice(starts) + 1
        ends = [i for i in range(start, len(good)) if good[i] in b',}]"\n'] or [len(good)]
        return good[:start] + r.choice(STRANGE).encode() + good[ends[0] :]
    if kind == "bytes":
        content = bytearray(good)
        for _ in range(r.randint(1, 4)):
            content[r.randrange(len(content))] = r.randrange(256)
        return bytes(content)
    return good[: r.randrange(len(good))] if kind == "cut" else good + good
