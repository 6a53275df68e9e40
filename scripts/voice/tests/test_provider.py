"""The protocol of the provider, with an engine without models."""

import asyncio
import contextlib
import io
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import fake
from apus_voice import client, grammar, limits, server, wire

SENTENCES = ["make it warmer", "make it warmer in the hall", "stop"]
NAME = grammar.digest(SENTENCES)


class Case(unittest.IsolatedAsyncioTestCase):
    """Starts a server in the loop of the test."""

    async def serve(self, **bounds):
        self.limits = limits.Limits(**bounds)
        self.engine = fake.Engine(self.limits)
        self.drained = []
        self.server = server.Server(self.engine, self.limits, on_drain=lambda: self.drained.append(True))
        listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        self.running = asyncio.ensure_future(self.server.run(listening))
        await asyncio.sleep(0)

    async def asyncTearDown(self):
        if hasattr(self, "running"):
            self.engine.may_recognise.set()
            self.engine.may_listen.set()
            self.running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.running

    async def connect(self):
        one = await client.Client.connect(self.address)
        self.addAsyncCleanup(one.close)
        return one

    async def until(self, condition, what):
        for _ in range(1000):
            if condition():
                return
            await asyncio.sleep(0.005)
        self.fail(f"not within 5 s: {what}")

    async def expect_error(self, one, code):
        event = await one.receive("transcript", "audio-stop", "detection", "not-detected", "pong")
        self.assertEqual((event.kind, event.data.get("code")), ("error", code))

    async def say(self, one, text, sentences=SENTENCES, name=NAME, milliseconds=100):
        await one.transcribe(name, sentences)
        await one.audio(fake.audio(text, milliseconds))
        await one.send("audio-stop")


class RecognitionTests(Case):
    async def test_a_sentence_of_the_grammar(self):
        await self.serve()
        one = await self.connect()
        await self.say(one, "stop")
        event = await one.receive("transcript")
        self.assertEqual(event.data["text"], "stop")
        self.assertEqual(event.data["context"]["apus"], {
            "candidates": [{"text": "make it warmer", "score": 0.5}], "free": "stop.", "whole": True,
            "milliseconds": 1})

    async def test_a_sentence_outside_of_the_grammar_has_an_empty_text_and_the_free_one(self):
        await self.serve()
        one = await self.connect()
        await self.say(one, "order a pizza")
        event = await one.receive("transcript")
        self.assertEqual(event.data["text"], "")
        self.assertEqual(event.data["context"]["apus"]["free"], "order a pizza.")
        self.assertFalse(event.data["context"]["apus"]["whole"])

    async def test_without_a_grammar_the_text_is_free(self):
        await self.serve()
        one = await self.connect()
        await self.say(one, "order a pizza", None, None)
        self.assertEqual((await one.receive("transcript")).data["text"], "order a pizza")

    async def test_sentences_are_sent_once(self):
        await self.serve()
        one, other = await self.connect(), await self.connect()
        await self.say(one, "stop", None)
        await self.expect_error(one, "apus-grammar-unknown")
        await self.say(one, "stop")
        self.assertEqual((await one.receive("transcript")).data["text"], "stop")
        await self.say(other, "stop", None)
        self.assertEqual((await other.receive("transcript")).data["text"], "stop")

    async def test_grammars_that_are_refused(self):
        await self.serve(sentences_max=3, grammars_max=1)
        one = await self.connect()
        for sentences, name in ((SENTENCES, "0" * 64), (SENTENCES + ["four"], None), ([], None), ("stop", None),
                                ([1], None), (["a", {}], None), (SENTENCES, 5)):
            if name is None:
                name = grammar.digest(sentences) if isinstance(sentences, list) and all(
                    isinstance(text, str) for text in sentences) else NAME
            await self.say(one, "stop", sentences, name)
            await self.expect_error(one, "apus-bad-grammar")
        await self.say(one, "stop")
        self.assertEqual((await one.receive("transcript")).data["text"], "stop")
        await self.say(one, "go", ["go"], grammar.digest(["go"]))
        self.assertEqual((await one.receive("transcript")).data["text"], "go")
        await self.say(one, "stop", None)
        await self.expect_error(one, "apus-grammar-unknown")

    async def test_a_failure_of_the_engine_is_an_error_and_nothing_else(self):
        await self.serve()
        one = await self.connect()
        with contextlib.redirect_stderr(io.StringIO()):
            await self.say(one, "fail")
            await self.expect_error(one, "apus-failed")
        await self.say(one, "stop")
        self.assertEqual((await one.receive("transcript")).data["text"], "stop")
        self.assertEqual(self.server.utterances, 0)

    async def test_audio_without_a_request_and_of_another_format(self):
        await self.serve()
        one = await self.connect()
        await one.send("audio-start", {"rate": 16000, "width": 2, "channels": 1})
        await self.expect_error(one, "apus-no-request")
        await one.send("transcribe")
        await one.send("audio-start", {"rate": 44100, "width": 2, "channels": 2})
        await self.expect_error(one, "apus-audio-format")

    async def test_events_that_are_not_known_are_ignored(self):
        await self.serve()
        one = await self.connect()
        await one.send("run-satellite", {"x": 1})
        await one.send("ping", {"text": "hello"})
        self.assertEqual((await one.receive("pong")).data, {"text": "hello"})


class WholeTests(Case):
    async def ask(self, one):
        await one.send("voice-stopped", {"timestamp": 100})
        event = await one.receive("transcript-chunk")
        return event.data["text"], event.data["context"]["apus"]

    async def test_is_it_whole(self):
        await self.serve()
        one = await self.connect()
        await one.transcribe(NAME, SENTENCES)
        await one.audio(fake.audio("make it "))
        self.assertEqual(await self.ask(one), ("make it", {"whole": False, "beginning": False, "audio_ms": 100}))
        await one.audio(fake.audio("warmer"))
        self.assertEqual(await self.ask(one), (
            "make it warmer", {"whole": True, "beginning": True, "audio_ms": 200}))
        await one.send("voice-started", {"timestamp": 210})
        await one.audio(fake.audio(" in the hall"))
        self.assertEqual(await self.ask(one), (
            "make it warmer in the hall", {"whole": True, "beginning": False, "audio_ms": 300}))

    async def test_recognition_ahead_of_time_is_the_answer_if_silence_follows(self):
        await self.serve()
        one = await self.connect()
        await one.transcribe(NAME, SENTENCES)
        await one.audio(fake.audio("stop"))
        await self.ask(one)
        await self.until(lambda: self.engine.recognised == ["stop"], "recognition ahead of time")
        await one.audio(bytes(3200))
        await self.ask(one)
        await one.send("audio-stop")
        self.assertEqual((await one.receive("transcript")).data["text"], "stop")
        self.assertEqual(self.engine.recognised, ["stop"])

    async def test_recognition_ahead_of_time_is_dropped_if_speech_goes_on(self):
        await self.serve()
        self.engine.may_recognise.clear()
        one = await self.connect()
        await one.transcribe(NAME, SENTENCES)
        await one.audio(fake.audio("make it warmer"))
        await self.ask(one)
        await self.until(lambda: self.engine.recognised, "recognition ahead of time")
        await one.send("voice-started", {"timestamp": 210})
        await self.until(lambda: self.engine.cancelled == 1, "the work is cancelled")
        self.engine.may_recognise.set()
        await one.audio(fake.audio(" in the hall"))
        await one.send("audio-stop")
        self.assertEqual((await one.receive("transcript")).data["text"], "make it warmer in the hall")

    async def test_a_late_listener_is_answered_for(self):
        await self.serve()
        self.engine.may_listen.clear()
        one = await self.connect()
        await one.transcribe(NAME, SENTENCES)
        await one.audio(fake.audio("stop"))
        asked = time.monotonic()
        self.assertEqual(await self.ask(one), ("", {"whole": False, "beginning": False, "audio_ms": 100}))
        self.assertLess(time.monotonic() - asked, 1)
        self.assertEqual(self.engine.recognised, [])
        self.engine.may_listen.set()
        await one.send("audio-stop")
        self.assertEqual((await one.receive("transcript")).data["text"], "stop")


class BoundTests(Case):
    async def test_length_of_an_utterance(self):
        await self.serve(audio_seconds_max=1)
        one = await self.connect()
        await one.transcribe(NAME, SENTENCES)
        for _ in range(11):
            await one.audio(bytes(3200))
        await self.expect_error(one, "apus-audio-too-long")
        await one.audio(bytes(3200))
        await one.send("audio-stop")
        await self.say(one, "stop")
        self.assertEqual((await one.receive("transcript")).data["text"], "stop")

    async def test_queue_of_the_recogniser(self):
        await self.serve(queue_max=2)
        self.engine.may_recognise.clear()
        clients = [await self.connect() for _ in range(4)]
        for number, one in enumerate(clients[:3]):
            await self.say(one, "stop")
            if number == 0:
                await self.until(lambda: len(self.engine.recognised) == 1, "the first one runs")
        await self.until(lambda: len(self.server.recogniser._jobs) == 2, "two wait")
        await self.say(clients[3], "stop")
        await self.expect_error(clients[3], "apus-busy")
        self.engine.may_recognise.set()
        for one in clients[:3]:
            self.assertEqual((await one.receive("transcript")).data["text"], "stop")

    async def test_work_ahead_of_time_makes_room_for_an_utterance_that_has_ended(self):
        await self.serve(queue_max=1)
        self.engine.may_recognise.clear()
        first, early, last = [await self.connect() for _ in range(3)]
        await self.say(first, "stop")
        await self.until(lambda: len(self.engine.recognised) == 1, "the first one runs")
        await early.transcribe(NAME, SENTENCES)
        await early.audio(fake.audio("make it warmer"))
        await early.send("voice-stopped", {"timestamp": 100})
        await early.receive("transcript-chunk")
        await self.say(last, "stop")
        await self.until(lambda: any(job.is_urgent for job in self.server.recogniser._jobs), "the last one waits")
        self.engine.may_recognise.set()
        self.assertEqual((await last.receive("transcript")).data["text"], "stop")
        await early.send("audio-stop")
        self.assertEqual((await early.receive("transcript")).data["text"], "make it warmer")

    async def test_utterances_and_connections_at_once(self):
        await self.serve(utterances_max=1, connections_max=2)
        one, other = await self.connect(), await self.connect()
        await one.transcribe(NAME, SENTENCES)
        await self.until(lambda: self.server.utterances == 1, "an utterance is there")
        await other.transcribe(NAME, SENTENCES)
        await self.expect_error(other, "apus-busy")
        third = await self.connect()
        await self.expect_error(third, "apus-busy")
        self.assertIsNone(await third.receive("pong"))

    async def test_an_utterance_without_events_ends(self):
        await self.serve(silence_seconds_max=0)
        one = await self.connect()
        await one.transcribe(NAME, SENTENCES)
        await self.expect_error(one, "apus-timeout")
        await self.until(lambda: self.server.utterances == 0, "the utterance is gone")

    async def test_a_client_that_leaves_frees_its_work(self):
        await self.serve()
        self.engine.may_recognise.clear()
        one = await self.connect()
        await self.say(one, "stop")
        await self.until(lambda: self.engine.recognised, "the recognition runs")
        await one.close()
        await self.until(lambda: self.engine.cancelled == 1, "the work is cancelled")
        await self.until(lambda: self.server.utterances == 0 and self.engine.listeners == 0, "nothing is left")
        self.assertEqual(len(self.server.connections), 0)

    async def test_after_its_share_of_work_a_process_drains(self):
        await self.serve(work_max=2)
        one, idle = await self.connect(), await self.connect()
        await idle.send("ping")
        await idle.receive("pong")
        with contextlib.redirect_stderr(io.StringIO()):
            await self.say(one, "stop")
            await one.receive("transcript")
            self.assertEqual(self.drained, [])
            await self.say(one, "stop")
            self.assertEqual((await one.receive("transcript")).data["text"], "stop")
            self.assertIsNone(await one.receive("pong"))
            self.assertIsNone(await idle.receive("pong"))
            await asyncio.wait_for(self.running, 5)
        self.assertEqual(self.drained, [True])


class WireTests(Case):
    async def answer_to(self, sent):
        """What the server answers to bytes, up to the end of the connection or of an answer to a ping."""
        reader, writer = await asyncio.open_connection(*self.address[6:].split(":"))
        writer.write(sent)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        return answer

    async def test_bytes_that_are_no_event(self):
        await self.serve(line_bytes_max=1000, data_bytes_max=2000, payload_bytes_max=3000)
        for sent in (b"{}\n", b"[]\n", b"\n", b"nonsense\n", b'{"type": 5}\n', b"x" * 5000 + b"\n",
                     b'{"type": "ping", "data": 5}\n', b'{"type": "ping", "data_length": 2001}\n',
                     b'{"type": "ping", "data_length": -1}\n', b'{"type": "ping", "payload_length": 3001}\n',
                     b'{"type": "ping", "data_length": true}\n', b'{"type": "ping", "data_length": 2}\n[]',
                     b"[" * 900 + b"\n"):
            self.assertIn(b"apus-bad-event", await self.answer_to(sent), sent[:60])

    async def test_an_event_in_pieces_and_cut_at_each_place(self):
        await self.serve()
        event = wire.encode(wire.Event("ping", {"text": "häh"}, b"payload"))
        whole = wire.encode(wire.Event("ping", {"text": "ok"}))
        for cut in range(len(event)):
            self.assertEqual(await self.answer_to(event[:cut]), b"", f"cut at {cut}")
        reader, writer = await asyncio.open_connection(*self.address[6:].split(":"))
        for byte in event + whole:
            writer.write(bytes([byte]))
            await writer.drain()
        for expected in ("häh", "ok"):
            self.assertEqual((await wire.read(reader, self.limits)).data["text"], expected)
        writer.close()

    async def test_random_bytes_and_flipped_bits_do_not_end_the_server(self):
        await self.serve(event_seconds_max=1)
        chance = random.Random(3)
        speech = b"".join(wire.encode(event) for event in (
            wire.Event("transcribe", {"context": {"apus": {"grammar": NAME, "sentences": SENTENCES}}}),
            wire.Event("audio-start", {"rate": 16000, "width": 2, "channels": 1}),
            wire.Event("audio-chunk", {"rate": 16000, "width": 2, "channels": 1}, fake.audio("stop")),
            wire.Event("voice-stopped", {"timestamp": 1}), wire.Event("audio-stop", {})))
        with contextlib.redirect_stderr(io.StringIO()):
            for _ in range(300):
                sent = bytearray(speech)
                for _ in range(chance.randrange(1, 4)):
                    sent[chance.randrange(min(len(sent), 900))] ^= 1 << chance.randrange(8)
                await self.answer_to(bytes(sent))
            await self.until(lambda: not self.server.connections, "all connections end")
        one = await self.connect()
        await self.say(one, "stop")
        self.assertEqual((await one.receive("transcript")).data["text"], "stop")
        self.assertEqual(self.server.utterances, 0)

    async def test_values_of_other_types_are_refused(self):
        await self.serve()
        one = await self.connect()
        with contextlib.redirect_stderr(io.StringIO()):
            for kind in server.HANDLERS:
                for value in (None, 5, "x", [], {}, [[]], {"apus": 7}, {"apus": {"grammar": []}}):
                    await one.send(kind, dict.fromkeys(
                        ("context", "text", "names", "rate", "width", "channels", "timestamp", "language"), value))
        await one.send("ping", {"text": "end"})
        while True:
            event = await one.receive("pong")
            if event.kind == "pong" and event.data.get("text") == "end":
                break


class SpeechTests(Case):
    async def sound(self, one):
        """The parts that were spoken."""
        event = await one.receive("audio-start")
        self.assertEqual((event.kind, event.data), ("audio-start", {"rate": 22050, "width": 2, "channels": 1}))
        sound = b""
        while (event := await one.receive("audio-chunk", "audio-stop")).kind == "audio-chunk":
            sound += event.payload
        self.assertEqual(event.kind, "audio-stop")
        return [part.decode() for part in sound.split(b"\0") if part]

    async def test_a_text_is_spoken_clause_by_clause(self):
        await self.serve()
        one = await self.connect()
        await one.send("synthesize", {"text": "The light is on, and the fan is off. Good night."})
        expected = ["The light is on,", "and the fan is off.", "Good night."]
        self.assertEqual(await self.sound(one), expected)
        self.assertEqual(self.engine.spoken, expected)

    async def test_a_text_that_arrives_in_pieces(self):
        await self.serve()
        one = await self.connect()
        await one.send("synthesize-start", {})
        for piece in ("The li", "ght is on. The f", "an is off"):
            await one.send("synthesize-chunk", {"text": piece})
        await self.until(lambda: self.engine.spoken == ["The light is on."], "the first sentence is spoken early")
        await one.send("synthesize", {"text": "The light is on. The fan is off"})
        await one.send("synthesize-stop")
        self.assertEqual(await self.sound(one), ["The light is on.", "The fan is off"])
        self.assertEqual((await one.receive("synthesize-stopped")).kind, "synthesize-stopped")

    async def test_texts_that_are_refused(self):
        await self.serve()
        one = await self.connect()
        await one.send("synthesize", {"text": "a" * 2049})
        await self.expect_error(one, "apus-text-too-long")
        await one.send("synthesize", {})
        await self.expect_error(one, "apus-bad-text")
        await one.send("synthesize", {"text": ""})
        self.assertEqual(await self.sound(one), [])
        await one.send("synthesize", {"text": "a" * 2048})
        self.assertEqual(await self.sound(one), ["a" * 2048])


class WakeTests(Case):
    async def test_a_phrase_is_detected_with_its_time(self):
        await self.serve()
        one = await self.connect()
        await one.send("detect", {"names": ["alexa"]})
        await one.send("audio-start", {"rate": 16000, "width": 2, "channels": 1})
        for text in ("hey_jarvis", "", "alexa"):
            await one.audio(fake.audio(text))
        event = await one.receive("detection")
        self.assertEqual((event.data["name"], event.data["timestamp"]), ("alexa", 300))
        await one.send("audio-stop")
        await self.until(lambda: self.engine.detectors[0].is_closed, "the detector is closed")

    async def test_a_stream_without_the_phrase(self):
        await self.serve()
        one = await self.connect()
        await one.send("detect", {})
        await one.audio(fake.audio("good morning"))
        await one.send("audio-stop")
        self.assertEqual((await one.receive("detection", "not-detected")).kind, "not-detected")

    async def test_a_phrase_that_no_model_has(self):
        await self.serve()
        one = await self.connect()
        await one.send("detect", {"names": ["hey you"]})
        await self.expect_error(one, "apus-unknown-phrase")


class DescribeTests(Case):
    async def test_info_names_the_programs(self):
        await self.serve()
        one = await self.connect()
        await one.send("describe")
        data = (await one.receive("info")).data
        self.assertTrue(data["asr"][0]["requires_external_vad"])
        self.assertTrue(data["tts"][0]["supports_synthesize_streaming"])
        self.assertEqual([model["phrase"] for model in data["wake"][0]["models"]], ["Hey Jarvis", "Alexa"])

    async def test_the_reference_client_understands(self):
        try:
            from wyoming.asr import Transcribe, Transcript
            from wyoming.audio import AudioChunk, AudioStart, AudioStop
            from wyoming.client import AsyncTcpClient
            from wyoming.info import Describe, Info
        except ImportError:
            self.skipTest("wyoming is not installed")
        await self.serve()
        async with AsyncTcpClient("127.0.0.1", int(self.address.rpartition(":")[2])) as one:
            await one.write_event(Describe().event())
            self.assertEqual(Info.from_event(await one.read_event()).tts[0].voices[0].name, "en_US-joe-medium")
            context = {"apus": {"grammar": NAME, "sentences": SENTENCES}}
            for event in (Transcribe(context=context), AudioStart(rate=16000, width=2, channels=1),
                          AudioChunk(rate=16000, width=2, channels=1, audio=fake.audio("stop")), AudioStop()):
                await one.write_event(event.event())
            self.assertEqual(Transcript.from_event(await one.read_event()).text, "stop")


class ProcessTests(unittest.TestCase):
    """The command itself, with the engine of the tests."""

    def start(self, *arguments):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = str(pathlib.Path(self.folder.name) / "v.sock")
        here = pathlib.Path(__file__).resolve().parent
        self.process = subprocess.Popen(
            [sys.executable, str(here.parent / "provider.py"), "--listen", f"unix://{self.path}", "--engine",
             "fake:Engine", *arguments], env={**os.environ, "PYTHONPATH": str(here)}, stderr=subprocess.DEVNULL)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.terminate)
        until = time.monotonic() + 10
        while not os.path.exists(self.path) and time.monotonic() < until:
            time.sleep(0.01)

    def recognise(self, text):
        """The text, and the process that has answered."""
        async def talk():
            one = await client.Client.connect(f"unix://{self.path}")
            await one.transcribe()
            await one.audio(fake.audio(text))
            await one.send("audio-stop")
            answer = await one.receive("transcript")
            await one.close()
            return answer.data["text"]

        return asyncio.run(asyncio.wait_for(talk(), 20))

    def children(self):
        return pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()

    def test_a_socket_for_its_owner_only_which_is_removed_at_the_end(self):
        self.start()
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)
        self.assertEqual(self.recognise("hello"), "hello")
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(15), 0)
        self.assertFalse(os.path.exists(self.path))

    def test_no_utterance_is_lost_when_a_process_is_replaced(self):
        self.start("--work-max", "3")
        seen = set()
        for number in range(12):
            self.assertEqual(self.recognise(f"number {number}"), f"number {number}")
            seen |= set(self.children())
        self.assertGreaterEqual(len(seen), 3)

    def test_a_process_that_is_killed_is_replaced(self):
        self.start()
        self.assertEqual(self.recognise("before"), "before")
        killed = self.children()
        os.kill(int(killed[0]), signal.SIGKILL)
        self.assertEqual(self.recognise("after"), "after")
        self.assertNotEqual(self.children(), killed)

    def test_only_a_loopback_address(self):
        done = subprocess.run(
            [sys.executable, str(pathlib.Path(__file__).resolve().parents[1] / "provider.py"), "--listen",
             "tcp://0.0.0.0:10399"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("loopback", done.stderr)


if __name__ == "__main__":
    unittest.main()
