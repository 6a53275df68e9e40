package import ApusCore

/// `transcribe`: an utterance follows.
///
/// Pure value.
package struct WyomingTranscribe: Sendable, Equatable {
    /// The model.
    package var name: String?
    package var language: String?
    package var grammar: WyomingGrammar?

    package init(name: String? = nil, language: String? = nil, grammar: WyomingGrammar? = nil) {
        (self.name, self.language, self.grammar) = (name, language, grammar)
    }

    init(_ fields: WyomingFields) throws(ApusError) {
        self.init(
            name: try fields.text("name"), language: try fields.text("language"),
            grammar: try WyomingGrammar(context: fields["context"]))
    }

    var members: [JSONValue.Member] {
        [JSONValue.Member](
            fields: [
                "name": name.map { .string($0) }, "language": language.map { .string($0) },
                "context": grammar?.context,
            ])
    }
}

/// What a recognizer says about an utterance beside its text, in the `context` of `transcript`. An addition of this
/// project.
///
/// Pure value.
package struct WyomingResult: Sendable, Equatable {
    /// The most candidates.
    package static let candidateCountMax = 16

    /// A sentence of the grammar that may have been said.
    package struct Candidate: Sendable, Equatable {
        package var text: String
        /// The higher, the more probable. What it is compared with is the recognizer's business.
        package var score: Double

        package init(text: String, score: Double) { (self.text, self.score) = (text, score) }
    }

    /// The best one first.
    package var candidates: [Candidate]
    /// What was heard without regard to the grammar.
    package var free: String?
    /// True if what was heard is a whole sentence of the grammar.
    package var isWhole: Bool?
    /// The length of the audio.
    package var milliseconds: Int?

    package init(
        candidates: [Candidate] = [], free: String? = nil, isWhole: Bool? = nil, milliseconds: Int? = nil
    ) {
        (self.candidates, self.free) = (candidates, free)
        (self.isWhole, self.milliseconds) = (isWhole, milliseconds)
    }

    init?(context: JSONValue?) throws(ApusError) {
        guard let apus = context?["apus"] else { return nil }
        let fields = try WyomingFields(apus)
        var candidates: [Candidate] = []
        for element in try fields.elements("candidates", countMax: Self.candidateCountMax) {
            let candidate = try WyomingFields(element)
            candidates.append(
                Candidate(text: try candidate.requiredText("text"), score: try candidate.number("score") ?? 0))
        }
        self.init(
            candidates: candidates, free: try fields.text("free"), isWhole: try fields.flag("whole"),
            milliseconds: try fields.milliseconds("milliseconds"))
    }

    var context: JSONValue {
        let candidates = candidates.map { candidate in
            // JSON has no infinity, and no number that is none.
            let score = candidate.score.isFinite ? candidate.score : candidate.score > 0 ? 1e300 : -1e300
            return JSONValue.fields(["text": .string(candidate.text), "score": .number("\(score)")])
        }
        return .fields([
            "apus": .fields([
                "candidates": .array(candidates), "free": free.map { .string($0) },
                "whole": isWhole.map { .bool($0) }, "milliseconds": milliseconds.map { .integer($0) },
            ])
        ])
    }
}

/// `transcript`: what was said in an utterance, or a text for a handler. An empty text: nothing that the grammar has.
///
/// Pure value.
package struct WyomingTranscript: Sendable, Equatable {
    package var text: String
    package var language: String?
    package var result: WyomingResult?
    /// The members of the context beside ``result``. To a handler, they name the conversation.
    package var context: [JSONValue.Member]

    package init(
        text: String, language: String? = nil, result: WyomingResult? = nil, context: [JSONValue.Member] = []
    ) {
        (self.text, self.language, self.result, self.context) = (text, language, result, context)
    }

    init(_ fields: WyomingFields) throws(ApusError) {
        self.init(
            text: try fields.requiredText("text"), language: try fields.text("language"),
            result: try WyomingResult(context: fields["context"]))
        if case .object(let members) = fields["context"] {
            context = members.filter { !$0.name.isExactly("apus") }
        }
    }

    var members: [JSONValue.Member] {
        var context = context
        if case .object(let members) = result?.context { context += members }
        return [JSONValue.Member](
            fields: [
                "text": .string(text), "language": language.map { .string($0) },
                "context": context.isEmpty ? nil : .object(context),
            ])
    }
}

/// `transcript-chunk`. A recognizer sends it when the client's detector reports a pause (`voice-stopped`) within an
/// utterance. Its context is an addition of this project. A foreign recognizer has chunks without it.
///
/// Pure value.
package struct WyomingTranscriptChunk: Sendable, Equatable {
    /// What was heard up to a pause.
    package struct Pause: Sendable, Equatable {
        /// True if it is a whole sentence of the grammar.
        package var isWhole: Bool
        /// True if this sentence is also the beginning of another one.
        package var isBeginning: Bool
        /// The length of the audio that was heard.
        package var milliseconds: Int

        package init(isWhole: Bool, isBeginning: Bool, milliseconds: Int) {
            (self.isWhole, self.isBeginning, self.milliseconds) = (isWhole, isBeginning, milliseconds)
        }
    }

    /// With ``pause``: the hypothesis so far. Otherwise the next part of the transcript.
    package var text: String
    package var pause: Pause?

    package init(text: String, pause: Pause? = nil) { (self.text, self.pause) = (text, pause) }

    init(_ fields: WyomingFields) throws(ApusError) {
        self.init(text: try fields.requiredText("text"))
        guard let apus = fields["context"]?["apus"] else { return }
        let context = try WyomingFields(apus)
        pause = Pause(
            isWhole: try context.flag("whole") ?? false, isBeginning: try context.flag("beginning") ?? false,
            milliseconds: try context.milliseconds("audio_ms") ?? 0)
    }

    var members: [JSONValue.Member] {
        let context = pause.map { pause in
            JSONValue.fields([
                "apus": .fields([
                    "whole": .bool(pause.isWhole), "beginning": .bool(pause.isBeginning),
                    "audio_ms": .integer(pause.milliseconds),
                ])
            ])
        }
        return [JSONValue.Member](fields: ["text": .string(text), "context": context])
    }
}

/// `synthesize`: a request to speak a text.
///
/// Pure value.
package struct WyomingSynthesize: Sendable, Equatable {
    package var text: String
    package var voice: String?
    package var language: String?
    package var speaker: String?

    package init(text: String, voice: String? = nil, language: String? = nil, speaker: String? = nil) {
        (self.text, self.voice, self.language, self.speaker) = (text, voice, language, speaker)
    }

    init(_ fields: WyomingFields) throws(ApusError) {
        self.init(text: try fields.requiredText("text"))
        guard let value = fields["voice"] else { return }
        let names = try WyomingFields(value)
        (voice, language) = (try names.text("name"), try names.text("language"))
        speaker = try names.text("speaker")
    }

    var members: [JSONValue.Member] {
        let names = [JSONValue.Member](
            fields: [
                "name": voice.map { .string($0) }, "language": language.map { .string($0) },
                "speaker": speaker.map { .string($0) },
            ])
        return [JSONValue.Member](fields: ["text": .string(text), "voice": names.isEmpty ? nil : .object(names)])
    }
}

/// `detection`: a wake word was heard.
///
/// Pure value.
package struct WyomingDetection: Sendable, Equatable {
    package var name: String?
    /// In milliseconds, of the audio's timestamps.
    package var timestamp: Int?
    package var speaker: String?

    package init(name: String? = nil, timestamp: Int? = nil, speaker: String? = nil) {
        (self.name, self.timestamp, self.speaker) = (name, timestamp, speaker)
    }

    init(_ fields: WyomingFields) throws(ApusError) {
        self.init(
            name: try fields.text("name"), timestamp: try fields.milliseconds(),
            speaker: try fields.text("speaker"))
    }

    var members: [JSONValue.Member] {
        [JSONValue.Member](
            fields: [
                "name": name.map { .string($0) }, "timestamp": timestamp.map { .integer($0) },
                "speaker": speaker.map { .string($0) },
            ])
    }
}
