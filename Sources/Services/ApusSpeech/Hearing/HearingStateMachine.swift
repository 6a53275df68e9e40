/// Finds the end of what a person says, in the time of the microphone and not of a clock.
///
/// A gate on energy finds pauses. It compares the power of a window with the quietest of the last seconds, which rises
/// slowly. At a pause, a speech provider is asked whether the words so far are a whole sentence of the grammar. How
/// much silence ends the sentence depends on the answer (``HearingLimits``). A window that the gate cannot judge is not
/// silence.
///
/// In steady noise no pause is found. The provider is then asked from time to time, and a whole sentence that three
/// answers agree on has ended. The longest time ends all else.
///
/// Pure value. Windows have ``windowMicroseconds`` each; times are microseconds since the first window.
package struct HearingStateMachine: Sendable {
    package static let windowMicroseconds: Int64 = 20_000

    package enum Action: Sendable, Hashable {
        /// Ask the provider what was heard until this time. The answer has the same number. Without a pause, the person
        /// continues to speak.
        case ask(Int, at: Int64, isPause: Bool)
        /// The person has begun to speak.
        case began(at: Int64)
        /// The person has continued to speak: the answer to the last question no longer matters.
        case resumed(at: Int64)
        case ended(HearingEnd, speechEnd: Int64)
    }

    /// What a provider says about the words so far.
    package struct Answer: Sendable, Hashable {
        package var text: String
        /// They are a whole sentence of the grammar.
        package var isWhole: Bool
        /// The sentence is also the beginning of another one.
        package var isBeginning: Bool

        package init(text: String = "", isWhole: Bool = false, isBeginning: Bool = false) {
            (self.text, self.isWhole, self.isBeginning) = (text, isWhole, isBeginning)
        }
    }

    /// A power below this is silence, whatever the floor: an amplitude of about 20 of 32,768.
    private static let quietPower: UInt64 = 400
    /// Speech has eight times the power of the floor: 9 dB.
    private static let speechFactor: UInt64 = 8
    /// The floor rises by a part of itself with each window: 2.7 dB in a second.
    private static let floorRise: UInt64 = 80
    /// The number of consecutive windows above the gate that begin speech: a click is none.
    private static let onsetCount = 3
    /// Fewer windows of silence are a part of a word, such as before a plosive.
    private static let pauseMicroseconds: Int64 = 100_000
    /// In noise, the provider is asked at these intervals.
    private static let steadyInterval: Int64 = 500_000
    /// The first of these questions comes after this time of speech.
    private static let steadyStart: Int64 = 1_000_000
    /// The number of equal answers that end a sentence: it has not changed for a second.
    private static let steadyCount = 3

    private let limits: HearingLimits
    /// The end of the last window.
    package private(set) var now: Int64 = 0
    private var floor: UInt64?
    private var loudCount = 0
    /// The start of the first window with speech; nil before it.
    package private(set) var speechStart: Int64?
    /// The end of the last window with speech.
    package private(set) var speechEnd: Int64 = 0
    private var isPausing = false
    private var question: (number: Int, at: Int64, isAnswered: Bool, answer: Answer)?
    private var questionCount = 0
    /// The start of speech without a pause.
    private var stretchStart: Int64 = 0
    /// The whole sentence of the last answers in this stretch, and their number.
    private var steady: (text: String, count: Int)?
    /// Nil until the end was found.
    package private(set) var end: HearingEnd?

    package init(_ limits: HearingLimits) { self.limits = limits }

    /// The next window of sound.
    ///
    /// - Parameter power: the mean of the squares of the samples.
    package mutating func heard(power: UInt64, _ actions: inout [Action]) {
        guard end == nil else { return }
        now += Self.windowMicroseconds
        let isLoud = isSpeech(power)
        loudCount = isLoud ? loudCount + 1 : 0
        if loudCount >= Self.onsetCount || (isLoud && speechStart != nil && !isPausing) {
            spoke(&actions)
        }
        decide(&actions)
    }

    /// The provider has answered a question. An answer to an earlier one has no effect.
    package mutating func answered(_ number: Int, _ answer: Answer, _ actions: inout [Action]) {
        guard end == nil, let asked = question, asked.number == number, !asked.isAnswered else { return }
        question = (number, asked.at, true, answer)
        if !isPausing {
            let isSame = steady.map { $0.text.utf8.elementsEqual(answer.text.utf8) } ?? false
            steady = answer.isWhole ? (answer.text, isSame ? (steady?.count ?? 0) + 1 : 1) : nil
            if let steady, steady.count >= Self.steadyCount { return finish(.steady, &actions) }
        }
        decide(&actions)
    }

    /// The device has ended its microphone's stream.
    package mutating func microphoneEnded(_ actions: inout [Action]) {
        guard end == nil else { return }
        finish(speechStart == nil ? .nothing : .microphone, &actions)
    }

    private mutating func isSpeech(_ power: UInt64) -> Bool {
        let known = floor ?? max(power, 1)
        let isLoud = power > max(Self.quietPower, known * Self.speechFactor)
        // The floor follows a quieter window at once, and a louder one slowly.
        floor = power < known ? max(power, 1) : min(power, known + known / Self.floorRise + 1)
        return isLoud
    }

    private mutating func spoke(_ actions: inout [Action]) {
        if speechStart == nil {
            stretchStart = max(0, now - Int64(Self.onsetCount) * Self.windowMicroseconds)
            speechStart = stretchStart
            actions.append(.began(at: now))
        }
        speechEnd = now
        guard isPausing else { return }
        (isPausing, stretchStart) = (false, now)
        question = nil
        steady = nil
        actions.append(.resumed(at: now))
    }

    private mutating func decide(_ actions: inout [Action]) {
        guard now < limits.utteranceMax else { return finish(speechStart == nil ? .nothing : .tooLong, &actions) }
        guard speechStart != nil else {
            if now >= limits.startMax { finish(.nothing, &actions) }
            return
        }
        let pause = now - speechEnd
        if pause >= Self.pauseMicroseconds, !isPausing {
            isPausing = true
            steady = nil
            ask(&actions)
        }
        guard isPausing else {
            let next = question.map { $0.at + Self.steadyInterval } ?? stretchStart + Self.steadyStart
            if question?.isAnswered ?? true, now >= next { ask(&actions) }
            return
        }
        if let question, question.isAnswered, question.answer.isWhole {
            let wait = question.answer.isBeginning ? limits.beginningSilence : limits.wholeSilence
            if pause >= wait { return finish(.sentence, &actions) }
        }
        if pause >= limits.silence { finish(.silence, &actions) }
    }

    private mutating func ask(_ actions: inout [Action]) {
        questionCount += 1
        question = (questionCount, now, false, Answer())
        actions.append(.ask(questionCount, at: now, isPause: isPausing))
    }

    private mutating func finish(_ end: HearingEnd, _ actions: inout [Action]) {
        self.end = end
        actions.append(.ended(end, speechEnd: speechEnd))
    }
}

/// How the end of what was said was found.
package enum HearingEnd: Sendable, Hashable, CaseIterable {
    /// Silence after a whole sentence of the grammar.
    case sentence
    /// A longer silence.
    case silence
    /// A whole sentence that no longer changed, in noise.
    case steady
    case tooLong
    /// Nobody spoke.
    case nothing
    /// The device ended its microphone's stream.
    case microphone
}

/// The times of hearing, in microseconds of the microphone.
package struct HearingLimits: Sendable, Hashable {
    /// What is said lasts at most so long, with the silence before it.
    package var utteranceMax: Int64 = 8_000_000
    /// Nobody spoke for this time.
    package var startMax: Int64 = 5_000_000
    /// Silence after a whole sentence.
    package var wholeSilence: Int64 = 200_000
    /// Silence after a whole sentence that is the beginning of another one.
    package var beginningSilence: Int64 = 500_000
    /// Silence after anything else.
    package var silence: Int64 = 1_300_000

    package init() {}
}
