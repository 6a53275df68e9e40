package import ApusCore

/// A Wyoming event with its fields. Events that this project does not use are ``other(_:)``.
///
/// Pure value.
package enum WyomingMessage: Sendable, Equatable {
    case describe
    case info(WyomingInfo)
    case ping(text: String?)
    case pong(text: String?)
    case error(text: String, code: String?)
    case audioStart(WyomingAudioFormat, timestamp: Int?)
    case audioChunk(WyomingAudioChunk)
    case audioStop(timestamp: Int?)
    case transcribe(WyomingTranscribe)
    case transcript(WyomingTranscript)
    case transcriptStart(language: String?)
    case transcriptChunk(WyomingTranscriptChunk)
    case transcriptStop
    case synthesize(WyomingSynthesize)
    /// Speech has begun, or continues after a pause.
    case voiceStarted(timestamp: Int?)
    /// A pause, or the end of the speech.
    case voiceStopped(timestamp: Int?)
    /// Looks for wake words; nil: for those that the provider has.
    case detect(names: [String]?)
    case detection(WyomingDetection)
    case notDetected
    /// The answer of a handler of intents. The context belongs to the next request.
    case handled(text: String?, context: JSONValue?)
    case notHandled(text: String?, context: JSONValue?)
    case other(WyomingEvent)

    /// The most names of a `detect`.
    package static let nameCountMax = 64

    /// - Throws: 10001 if a member is missing or has another type; 10002 if a list is too long.
    package init(_ event: WyomingEvent) throws(ApusError) {
        let fields = WyomingFields(event.data)
        switch event.type {
        case "describe": self = .describe
        case "info": self = .info(try WyomingInfo(fields))
        case "ping": self = .ping(text: try fields.text("text"))
        case "pong": self = .pong(text: try fields.text("text"))
        case "error": self = .error(text: try fields.requiredText("text"), code: try fields.text("code"))
        case "audio-start":
            self = .audioStart(try WyomingAudioFormat(fields), timestamp: try fields.milliseconds())
        case "audio-chunk": self = .audioChunk(try WyomingAudioChunk(fields, event.payload))
        case "audio-stop": self = .audioStop(timestamp: try fields.milliseconds())
        case "transcribe": self = .transcribe(try WyomingTranscribe(fields))
        case "transcript": self = .transcript(try WyomingTranscript(fields))
        case "transcript-start": self = .transcriptStart(language: try fields.text("language"))
        case "transcript-chunk": self = .transcriptChunk(try WyomingTranscriptChunk(fields))
        case "transcript-stop": self = .transcriptStop
        case "synthesize": self = .synthesize(try WyomingSynthesize(fields))
        case "voice-started": self = .voiceStarted(timestamp: try fields.milliseconds())
        case "voice-stopped": self = .voiceStopped(timestamp: try fields.milliseconds())
        case "detect":
            let names = try fields.texts("names", countMax: Self.nameCountMax)
            self = .detect(names: fields["names"] == nil ? nil : names)
        case "detection": self = .detection(try WyomingDetection(fields))
        case "not-detected": self = .notDetected
        case "handled": self = .handled(text: try fields.text("text"), context: fields["context"])
        case "not-handled": self = .notHandled(text: try fields.text("text"), context: fields["context"])
        default: self = .other(event)
        }
    }

    package var event: WyomingEvent {
        switch self {
        case .describe: WyomingEvent(type: "describe")
        case .info(let info): WyomingEvent(type: "info", data: info.members)
        case .ping(let text): Self.event("ping", ["text": text.map { .string($0) }])
        case .pong(let text): Self.event("pong", ["text": text.map { .string($0) }])
        case .error(let text, let code):
            Self.event("error", ["text": .string(text), "code": code.map { .string($0) }])
        case .audioStart(let format, let timestamp):
            WyomingEvent(type: "audio-start", data: format.members(timestamp: timestamp))
        case .audioChunk(let chunk):
            WyomingEvent(
                type: "audio-chunk", data: chunk.format.members(timestamp: chunk.timestamp), payload: chunk.audio)
        case .audioStop(let timestamp): Self.event("audio-stop", timestamp)
        case .transcribe(let transcribe): WyomingEvent(type: "transcribe", data: transcribe.members)
        case .transcript(let transcript): WyomingEvent(type: "transcript", data: transcript.members)
        case .transcriptStart(let language):
            Self.event("transcript-start", ["language": language.map { .string($0) }])
        case .transcriptChunk(let chunk): WyomingEvent(type: "transcript-chunk", data: chunk.members)
        case .transcriptStop: WyomingEvent(type: "transcript-stop")
        case .synthesize(let synthesize): WyomingEvent(type: "synthesize", data: synthesize.members)
        case .voiceStarted(let timestamp): Self.event("voice-started", timestamp)
        case .voiceStopped(let timestamp): Self.event("voice-stopped", timestamp)
        case .detect(let names): Self.event("detect", ["names": names.map { .texts($0) }])
        case .detection(let detection): WyomingEvent(type: "detection", data: detection.members)
        case .notDetected: WyomingEvent(type: "not-detected")
        case .handled(let text, let context):
            Self.event("handled", ["text": text.map { .string($0) }, "context": context])
        case .notHandled(let text, let context):
            Self.event("not-handled", ["text": text.map { .string($0) }, "context": context])
        case .other(let event): event
        }
    }

    private static func event(_ type: String, _ fields: KeyValuePairs<String, JSONValue?>) -> WyomingEvent {
        WyomingEvent(type: type, data: [JSONValue.Member](fields: fields))
    }

    private static func event(_ type: String, _ timestamp: Int?) -> WyomingEvent {
        event(type, ["timestamp": timestamp.map { .integer($0) }])
    }
}
