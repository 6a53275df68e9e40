import ApusCore
import ApusWyoming
import NIOCore

/// Messages of each kind, with all members and with as few as possible.
enum WyomingSamples {
    static let grammar = try? WyomingGrammar(sentences: ["turn on the lamp", "Öffne die Tür", "stop"])

    static let messages: [WyomingMessage] =
        [
            .describe, .info(WyomingInfo()), .info(info), .ping(text: nil), .ping(text: "a\n\"b\" \u{1F600}"),
            .pong(text: "x"), .error(text: "no", code: nil), .error(text: "full", code: WyomingGrammar.busyCode),
            .audioStart(.speech, timestamp: nil),
            .audioStart(WyomingAudioFormat(rate: 48_000, width: 4, channels: 2), timestamp: 0),
            .audioChunk(WyomingAudioChunk(format: .speech, audio: ByteBuffer())),
            .audioChunk(
                WyomingAudioChunk(format: .speech, audio: ByteBuffer(bytes: [0, 10, 0x7b, 0xff]), timestamp: 20)),
            .audioStop(timestamp: nil), .audioStop(timestamp: 1200),
            .transcribe(WyomingTranscribe()),
            .transcribe(WyomingTranscribe(name: "tiny", language: "en", grammar: grammar)),
            .transcribe(WyomingTranscribe(grammar: grammar?.withoutSentences)),
            .transcript(WyomingTranscript(text: "")),
            .transcript(
                WyomingTranscript(
                    text: "help", language: "en",
                    context: [.init(name: "conversation_id", value: .string("01J"))])),
            .transcript(
                WyomingTranscript(
                    text: "stop", language: "en",
                    result: WyomingResult(
                        candidates: [.init(text: "stop", score: -0.25), .init(text: "top", score: -1e-9)],
                        free: "stop it", isWhole: true, milliseconds: 812))),
            .transcriptStart(language: "en"), .transcriptChunk(WyomingTranscriptChunk(text: "turn on")),
            .transcriptChunk(
                WyomingTranscriptChunk(
                    text: "turn on", pause: .init(isWhole: false, isBeginning: true, milliseconds: 640))),
            .transcriptStop, .synthesize(WyomingSynthesize(text: "Done.")),
            .synthesize(WyomingSynthesize(text: "Done.", voice: "joe", language: "en", speaker: "1")),
            .voiceStarted(timestamp: 300), .voiceStopped(timestamp: nil),
        ] + wakeAndHandling

    private static let wakeAndHandling: [WyomingMessage] = [
        .detect(names: nil), .detect(names: []), .detect(names: ["okay_nabu"]),
        .detection(WyomingDetection()),
        .detection(WyomingDetection(name: "okay_nabu", timestamp: 4000, speaker: "a")), .notDetected,
        .handled(text: nil, context: nil),
        .handled(text: "It rains.", context: .object([.init(name: "turn", value: .number("2"))])),
        .notHandled(text: "What?", context: nil),
        .other(
            WyomingEvent(
                type: "run-pipeline", data: [.init(name: "start_stage", value: .string("asr"))],
                payload: ByteBuffer(string: "\n{"))),
    ]

    static let info = WyomingInfo(
        recognition: [
            .init(
                .init(name: "sphinx", description: "d", version: "1", attribution: ("CMU", "https://example.org")),
                models: [.init(.init(name: "en-us", isInstalled: false), languages: ["en", "en-US"])],
                isStreaming: true)
        ],
        speech: [
            .init(
                .init(name: "espeak"),
                models: [.init(.init(name: "en"), languages: ["en"], speakers: ["a", "b"])])
        ],
        handling: [.init(.init(name: "llm"), models: [], isStreaming: true, controlsHome: true)],
        wake: [.init(.init(name: "mww"), models: [.init(.init(name: "nabu"), languages: [], phrase: "okay nabu")])])

    static func bytes(_ message: WyomingMessage) throws -> ByteBuffer {
        var buffer = ByteBuffer()
        try message.event.encode(into: &buffer)
        return buffer
    }

    /// A line with what follows it.
    static func bytes(_ line: String, _ rest: String = "") -> ByteBuffer { ByteBuffer(string: line + "\n" + rest) }
}
