"""What a provider says about itself."""


def info(engine):
    """The answer to `describe`."""
    def artifact(name, description, version, author, url, **more):
        return {"name": name, "description": description, "version": version, "installed": True,
                "attribution": {"name": author, "url": url}, **more}

    english = {"languages": ["en"]}
    whisper = artifact("tiny.en", "Whisper tiny.en", "1", "OpenAI", "https://github.com/openai/whisper", **english)
    joe = artifact("en_US-joe-medium", "Joe, American English", "1", "rhasspy", "https://github.com/rhasspy/piper",
                   languages=["en_US"], speakers=None)
    words = [artifact(name, phrase, "2", "kahrendt", "https://github.com/kahrendt/microWakeWord", phrase=phrase,
                      **english)
             for name, phrase in engine.phrases().items()]
    apus = {"author": "The Apus authors", "url": "", "version": "1"}
    return {
        "asr": [artifact("apus-voice", "Whisper scores the sentences of a grammar", models=[whisper],
                         supports_transcript_streaming=False, requires_external_vad=True,
                         prefers_auto_gain_enabled=False, prefers_noise_reduction_enabled=False, **apus)],
        "tts": [artifact("apus-voice", "Piper", voices=[joe], supports_synthesize_streaming=True, **apus)],
        "wake": [artifact("apus-voice", "microWakeWord", models=words, **apus)],
        "handle": [], "intent": [], "mic": [], "snd": [],
    }
