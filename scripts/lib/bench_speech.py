"""People speak to many devices of a cluster: what was understood, and how long each stage took.

Each speaker is a process `apus dialog` with WAV files as its microphone. The lamps are other devices, which confirm
what is written. The sentences are spoken by espeak-ng and, where it is installed, flite; or they come from a folder
with manifest.jsonl (file, text, kind: "in", or "oog" for a sentence that must not be understood).

With --provider-kills two providers run, and one of them is killed with SIGKILL in turn, and started again, until it was done
so often: each sentence must be answered.

Used by scripts/benchmarks/speech.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from local_cluster import Cluster, say

ACCOUNTS = 8
VOICES = {"espeak-ng": ["en-us", "en-us+f3", "en-gb"], "flite": ["slt", "rms", "awb"]}
SENTENCES = [
    "turn on the hall lamp", "turn off the hall lamp", "turn on the kitchen light", "switch off the kitchen light",
    "set the hall lamp to forty percent", "set the kitchen light to seventy five percent", "turn on the bedroom fan",
    "turn off the fan in the bedroom", "what time is it", "what day is it", "set a timer for ten minutes",
    "how much time is left", "cancel the timer", "is the hall lamp on", "turn off all lights", "dim the hall lamp",
    "make the kitchen light brighter", "stop", "say that again", "wake me at half past six",
]
FOREIGN = [
    "my brother wanted to paint the fence behind the church", "the committee never mentioned the money",
    "she is looking for a new bicycle", "remind my sister about the dinner on thursday",
    "what time is the next train to the airport",
]


def home(account):
    lamp = f"lamp-{account}"

    def light(name, title, area, setting):
        return {"id": name, "device": lamp, "names": [title], "kind": "light", "area": area, "controls": [
            {"what": "power", "path": f"ProWritable.{setting}", "onJson": "1", "offJson": "0"},
            {"what": "brightness", "path": f"ProWritable.{setting}-level"}]}

    fan = {"id": "fan", "device": lamp, "names": ["bedroom fan", "fan"], "kind": "fan", "area": "bedroom", "controls": [
        {"what": "power", "path": "ProWritable.fan", "onJson": "1", "offJson": "0"}]}
    return {
        "areas": [{"id": area, "names": [area]} for area in ("hall", "kitchen", "bedroom")],
        "devices": [light("hall", "hall lamp", "hall", "hall"), light("kitchen", "kitchen light", "kitchen", "kitchen"),
                    fan],
    }


def speak(folder):
    """Files of all sentences and voices, as (path, text, is to be understood)."""
    made = []
    for program, voices in VOICES.items():
        if not shutil.which(program):
            say(f"{program} is not installed: its voices are left out")
            continue
        for voice in voices:
            for number, text in enumerate(SENTENCES + FOREIGN):
                path = folder / f"{program}-{voice}-{number}.wav"
                command = ["espeak-ng", "-v", voice, "-w", path, text] if program == "espeak-ng" else [
                    "flite", "-voice", voice, "-t", text, "-o", path]
                subprocess.run(command, check=True, capture_output=True)
                made.append((path, text, text in SENTENCES))
    return made


def read_set(folder):
    made = []
    for line in (folder / "manifest.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry.get("kind") in ("in", "oog"):
            made.append((folder / entry["file"], entry["text"], entry["kind"] == "in"))
    return made


def plain(text):
    """A text without what changes no meaning."""
    words = re.sub(r"[^a-z0-9' ]", " ", text.lower()).split()
    return " ".join(word for word in words if word not in ("the", "my", "please"))


def meaning(turn):
    """What a sentence means, whatever its words."""
    return turn.get("intent", ""), tuple(sorted((slot.get("name", ""), slot.get("value", ""))
                                                for slot in turn.get("slots", [])))


def meanings(cluster, texts):
    """The meaning of each text, as it is understood when it is typed."""
    token = cluster.run("admin", "token", "--role", "app", "--account", "home-0").strip()
    return {text: meaning(json.loads(cluster.run("say", "lamp-0", text, "--json", "--token", token))) for text in texts}


def busy_seconds(pid):
    """The processor time of a process, with its children that have ended."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def quantile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0


class Speaker:
    """A device that is spoken to, one sentence after another."""

    def __init__(self, cluster, number, files, is_over=lambda: True):
        """is_over: after the last sentence it begins again with the first one, until this is true."""
        self.cluster, self.number, self.files, self.is_over = cluster, number, files, is_over
        self.answers, self.errors = [], []
        self.token = cluster.run(
            "admin", "token", "--role", "device", "--device", f"speaker-{number}", "--account",
            f"home-{number % ACCOUNTS}").strip()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        while True:
            self._say(list(self.files))
            if self.is_over():
                return

    def _say(self, rest):
        while rest:
            command = [self.cluster.apus, "dialog", f"speaker-{self.number}", "--dir", self.cluster.directory,
                       "--token", self.token, "--node", str(self.number % 3 + 1), "--json"]
            for path, _, _ in rest:
                command += ["--wav", path]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for line in process.stdout:
                _, text, is_known = rest.pop(0)
                answer = json.loads(line)
                answer["arrived"] = time.monotonic()
                self.answers.append((text, is_known, answer))
            error = process.stderr.read()
            if process.wait() and rest:
                path, text, _ = rest.pop(0)
                self.errors.append(f"{text}: {error.strip()[-300:]}")


class Killer:
    """Kills providers in turn, and starts them again."""

    INTERVAL, DOWN = 2.5, 0.5

    def __init__(self, options, apus, folder, providers):
        self.options, self.apus, self.folder, self.providers = options, apus, folder, providers
        self.times = []
        self.is_over = options.provider_kills == 0
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        for number in range(self.options.provider_kills):
            time.sleep(self.INTERVAL)
            index = number % len(self.providers)
            # The one that is preferred is asked for most sentences.
            self.times.append(time.monotonic())
            self.providers[index].kill()
            self.providers[index].wait()
            time.sleep(self.DOWN)
            _, self.providers[index] = start_provider(self.options, self.apus, self.folder, index)
            say(f"killed provider {index + 1} ({number + 1}/{self.options.provider_kills})")
        self.is_over = True


def start_provider(options, apus, folder, number=0):
    """The address of a provider, and its process; none if it is of others."""
    if options.provider:
        return options.provider, None
    path = folder / f"speech-{number}.sock"
    path.unlink(missing_ok=True)
    if options.accurate:
        python = pathlib.Path(os.environ.get("APUS_VOICE", pathlib.Path.home() / ".cache/apus/voice")) / "bin/python"
        command = [python, pathlib.Path(__file__).parents[1] / "voice" / "provider.py", "--listen", f"unix://{path}"]
    else:
        command = [apus, "provider", "--listen", f"unix:{path}"]
    log = open(folder / "provider.log", "a")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    for _ in range(600):
        if path.exists():
            return f"unix:{path}", process
        if process.poll() is not None:
            break
        time.sleep(0.1)
    process.kill()
    sys.exit(f"the provider does not start: {(folder / 'provider.log').read_text()[-500:]}")


def kill_rows(answers, times):
    """What the kills of providers have added: the time to the first sound of sentences that a kill met, beside others."""
    met, others = [], []
    for answer in answers:
        stages = answer.get("times", {})
        if not int(stages.get("replyBegan", 0)):
            continue
        end = answer["arrived"]
        begin = end - (int(stages.get("spoken", 0)) + int(stages.get("waited", 0)) + int(stages["replyBegan"])) / 1000
        waited = int(stages.get("waited", 0)) + int(stages["replyBegan"])
        (met if any(begin <= kill <= end for kill in times) else others).append(waited)
    usual = quantile(others, 0.5)
    added = [max(0, value - usual) for value in met]
    return [("providers killed", "provider_kills", len(times)), ("sentences that a kill met", "met", len(met)),
            ("added by a kill, ms, p50", "added_p50_ms", quantile(added, 0.5)),
            ("added by a kill, ms, p99", "added_p99_ms", quantile(added, 0.99)),
            ("the same without one, ms, p99", "usual_p99_ms", max(0, quantile(others, 0.99) - usual))]


def report(options, expected, speakers, node_seconds, provider_seconds, kills=()):
    answers = [answer for speaker in speakers for answer in speaker.answers]
    errors = [error for speaker in speakers for error in speaker.errors]
    known = [(text, answer) for text, is_known, answer in answers if is_known]
    foreign = [answer for _, is_known, answer in answers if not is_known]
    def is_right(text, answer):
        heard = answer.get("heard", "")
        return plain(heard) == plain(text) or (heard and meaning(answer["turn"]) == expected[text])

    exact = [answer for text, answer in known if is_right(text, answer)]
    refused = [text for text, answer in known if not answer.get("heard")]
    wrong = [(text, answer["heard"]) for text, answer in known if answer.get("heard") and not is_right(text, answer)]
    accepted = [answer["heard"] for answer in foreign if answer.get("turn", {}).get("intent")]
    if options.verbose:
        for text, heard in wrong:
            say(f"wrong: {text!r} was heard as {heard!r}")
        for text in refused:
            say(f"refused: {text!r}")
        for heard in accepted:
            say(f"accepted: {heard!r}")
    for error in errors:
        say(f"failed: {error}")
    rows = [
        ("sentences of the home", "sentences", len(known)),
        ("right, %", "right_percent", 100 * len(exact) / max(1, len(known))),
        ("wrong, %", "wrong_percent", 100 * len(wrong) / max(1, len(known))),
        ("other sentences", "foreign", len(foreign)),
        ("of those, carried out, %", "accepted_percent", 100 * len(accepted) / max(1, len(foreign))),
        ("failed", "failed", len(errors)),
    ]
    stages = {"silence that ended it": [], "then the text after": [], "done after": [], "first sound after": []}
    ends = []
    for answer in exact:
        times = {name: int(answer.get("times", {}).get(name, 0))
                 for name in ("waited", "recognized", "carriedOut", "replyBegan")}
        for values, name in zip(stages.values(), times):
            values.append(times[name])
        if times["replyBegan"]:
            ends.append(times["waited"] + times["replyBegan"])
    for (title, values), key in zip(stages.items(), ("waited", "recognized", "carried_out", "reply_began")):
        for part in (0.5, 0.99):
            rows.append((f"{title}, ms, p{part * 100:.0f}", f"{key}_p{part * 100:.0f}_ms", quantile(values, part)))
    for part in (0.5, 0.99):
        name = f"p{part * 100:.0f}"
        rows.append((f"end of speech to first sound, ms, {name}", f"end_to_sound_{name}_ms", quantile(ends, part)))
    count = max(1, len(answers))
    rows.append(("nodes' CPU for a sentence, ms", "node_cpu_ms", 1000 * node_seconds / count))
    if provider_seconds is not None:
        rows.append(("provider's CPU for a sentence, ms", "provider_cpu_ms", 1000 * provider_seconds / count))
    if options.provider_kills:
        rows += kill_rows([answer for _, answer in known] + foreign, kills)
    for title, _, value in rows:
        print(f"{title:42} {value:10.1f}")
    if options.json:
        print(json.dumps({key: round(value, 2) for _, key, value in rows}))
    return not errors


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench speech", description=__doc__.split("\n\n")[0])
    parser.add_argument("--speakers", type=int, default=20, help="speak to this many devices at once")
    parser.add_argument("--sentences", type=int, default=10, help="of each speaker")
    parser.add_argument("--set", type=pathlib.Path, help="take the sounds of this folder")
    parser.add_argument("--provider", help="use the provider at this address")
    parser.add_argument("--accurate", action="store_true", help="start the provider of scripts/voice")
    parser.add_argument("--seed", type=int, default=1, help="chooses who says what")
    parser.add_argument("--provider-kills", type=int, default=0, help="kill a provider this number of times")
    parser.add_argument("--base-port", type=int, default=29_700)
    parser.add_argument("--verbose", action="store_true", help="say what was not understood")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.provider and options.provider_kills:
        parser.error("--provider-kills needs providers of its own")
    apus = os.environ["APUS"]
    with tempfile.TemporaryDirectory(prefix="apus-speech-") as folder:
        folder = pathlib.Path(folder)
        sounds = read_set(options.set) if options.set else speak(folder)
        started = [start_provider(options, apus, folder, number)
                   for number in range(2 if options.provider_kills else 1)]
        providers = [process for _, process in started if process]
        os.environ["APUS_SPEECH_PROVIDERS"] = " ".join(address for address, _ in started)
        cluster = Cluster(apus, str(folder / "cluster"), options.base_port)
        try:
            cluster.start()
            is_good = measure(options, cluster, sounds, Killer(options, apus, folder, providers), folder)
        finally:
            cluster.stop()
            for provider in providers:
                provider.terminate()
                provider.wait(timeout=10)
    sys.exit(0 if is_good else 1)


def measure(options, cluster, sounds, killer, folder):
    (folder / "home.json").write_text("{}")
    for account in range(ACCOUNTS):
        token = cluster.run("admin", "token", "--role", "device", "--device", f"lamp-{account}", "--account",
                            f"home-{account}").strip()
        settings = [f"--setting={name}=0" for name in ("hall", "hall-level", "kitchen", "kitchen-level", "fan")]
        cluster.client("device", "--id", f"lamp-{account}", "--token", token, "--test-pattern", "160x120@1", *settings)
        path = folder / f"home-{account}.json"
        path.write_text(json.dumps(home(account)))
        token = cluster.run("admin", "token", "--role", "app", "--account", f"home-{account}").strip()
        cluster.run("voice", "put", str(path), "--token", token)
    chance = random.Random(options.seed)
    speakers = [Speaker(cluster, number, chance.sample(sounds, min(options.sentences, len(sounds))),
                        lambda: killer.is_over)
                for number in range(options.speakers)]
    said = {text for speaker in speakers for _, text, is_known in speaker.files if is_known}
    expected = meanings(cluster, sorted(said))
    nodes = json.loads(cluster.run("cluster", "status", "--json"))["nodes"]
    pids = [node["pid"] for node in nodes]
    before = sum(busy_seconds(pid) for pid in pids)
    # The time of a process that was killed is not known.
    provider = killer.providers[0] if killer.providers and killer.is_over else None
    provider_before = busy_seconds(provider.pid) if provider else None
    if not killer.is_over:
        killer.thread.start()
    for speaker in speakers:
        speaker.thread.start()
        time.sleep(0.35)  # Their sentences end at different times.
    for speaker in speakers:
        speaker.thread.join()
    return report(options, expected, speakers, sum(busy_seconds(pid) for pid in pids) - before,
                  busy_seconds(provider.pid) - provider_before if provider else None, killer.times)


if __name__ == "__main__":
    main()
