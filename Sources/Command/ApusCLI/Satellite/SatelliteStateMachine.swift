import ApusCore
import ApusWyoming
import NIOCore

/// The server's side of the Wyoming protocol of satellites: what Home Assistant is for a satellite.
///
/// The satellite detects its wake word itself, and then sends `run-pipeline` with the start stage `asr` and its sound.
/// The server answers with `transcript`, which ends the sound, `synthesize` with the reply's text, and the reply's
/// sound, which the satellite confirms with `played`. After `error` the satellite waits for its wake word again.
///
/// Pure: time comes in.
struct SatelliteStateMachine {
    enum Action: Equatable {
        case send(WyomingMessage)
        /// A sentence begins. The one before is over.
        case begin(Int)
        /// Sound of this sentence.
        case sound(Int, WyomingAudioChunk)
        /// The satellite sends no more sound of this sentence.
        case soundEnded(Int)
        /// The reply of this sentence was played, or cannot be waited for any longer.
        case played(Int)
        /// The connection is of no use.
        case close(ApusError)
    }

    private enum State {
        case idle
        case hearing(Int)
        /// The reply is played until this time at the latest.
        case playing(Int, until: MonotonicTime)
    }

    static let pingInterval = Duration.seconds(2)
    static let pongTimeout = Duration.seconds(5)
    /// What a satellite may need after the end of a reply to confirm it.
    private static let playedTime = Duration.seconds(2)

    private var state = State.idle
    private var sentence = 0
    private var nextPing: MonotonicTime
    private var pongUntil: MonotonicTime?
    /// It has answered a ping. Satellites before wyoming-satellite 1.3 do not.
    private var answersPings = false

    /// A connection is open.
    init(_ now: MonotonicTime, _ actions: inout [Action]) {
        nextPing = now
        actions += [.send(.describe), .send(.other(WyomingEvent(type: "run-satellite")))]
    }

    /// The time of the next ``tick(_:_:)``.
    var nextTick: MonotonicTime {
        var times = [nextPing]
        if let pongUntil { times.append(pongUntil) }
        if case .playing(_, let until) = state { times.append(until) }
        return times.min() ?? nextPing
    }

    mutating func tick(_ now: MonotonicTime, _ actions: inout [Action]) {
        if let pongUntil, now >= pongUntil {
            actions.append(.close(ApusError(.idleTimeout, "the satellite does not answer a ping")))
        }
        if now >= nextPing {
            nextPing = now + Self.pingInterval
            if answersPings, pongUntil == nil { pongUntil = now + Self.pongTimeout }
            actions.append(.send(.ping(text: nil)))
        }
        if case .playing(let number, let until) = state, now >= until { finish(number, &actions) }
    }

    mutating func received(_ message: WyomingMessage, _ actions: inout [Action]) {
        switch message {
        case .ping(let text): actions.append(.send(.pong(text: text)))
        case .pong: (answersPings, pongUntil) = (true, nil)
        case .audioChunk(let chunk):
            if case .hearing(let number) = state { actions.append(.sound(number, chunk)) }
        case .audioStop:
            if case .hearing(let number) = state { actions.append(.soundEnded(number)) }
        case .other(let event) where event.type.isExactly("run-pipeline"): run(event, &actions)
        case .other(let event) where event.type.isExactly("played"):
            if case .playing(let number, _) = state { finish(number, &actions) }
        default: break
        }
    }

    private mutating func run(_ event: WyomingEvent, _ actions: inout [Action]) {
        let stage = event.data.first { $0.name.isExactly("start_stage") }?.value.string ?? ""
        guard stage.isExactly("asr") else {
            let text = "the satellite has to detect its wake word itself, and to begin with the stage asr"
            return actions.append(.send(.error(text: text, code: "\(ErrorCode.badParameter.number)")))
        }
        sentence += 1
        state = .hearing(sentence)
        actions.append(.begin(sentence))
    }

    /// A sentence was heard and carried out. The sound of the reply is as long as `replyTime`; zero: there is none.
    mutating func answered(
        _ number: Int, heard: String, reply: String, language: String, replyTime: Duration, _ now: MonotonicTime,
        _ actions: inout [Action]
    ) {
        guard case .hearing(number) = state else { return }
        actions.append(.send(.transcript(WyomingTranscript(text: heard, language: language))))
        if !reply.isEmpty { actions.append(.send(.synthesize(WyomingSynthesize(text: reply, language: language)))) }
        if replyTime > .zero {
            state = .playing(number, until: now + replyTime + Self.playedTime)
        } else {
            finish(number, &actions)
        }
    }

    /// A sentence was not heard.
    mutating func failed(_ number: Int, _ error: ApusError, _ actions: inout [Action]) {
        guard case .hearing(number) = state else { return }
        state = .idle
        actions.append(.send(.error(text: error.message, code: "\(error.code.number)")))
    }

    private mutating func finish(_ number: Int, _ actions: inout [Action]) {
        state = .idle
        actions.append(.played(number))
    }
}
