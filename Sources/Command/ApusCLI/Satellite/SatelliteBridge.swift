import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusMedia
import ApusWyoming
import ApusWyomingClient
import Logging
import NIOCore
import Synchronization

/// Connects a Wyoming satellite to a spoken dialog: its microphone is the device's, and the reply is played by it.
///
/// Concurrency model: ``run()`` is one task. What it shares with a sentence's task is in a `Mutex`.
final class SatelliteBridge: Sendable {
    private static let longestPause = Duration.seconds(30)

    private let address: WyomingAddress
    private let group: any EventLoopGroup
    private let language: String?
    private let log: Logger
    private let dialog = Mutex<SpokenDialog?>(nil)
    private let shared = Mutex(Shared())

    private struct Shared {
        var connection: WyomingConnection?
        var machine: SatelliteStateMachine?
        var microphone: SatelliteMicrophone?
        var asking: Task<Void, Never>?
        /// The last sentence with a reply that is being played.
        var played: (number: Int, id: String)?
        var rate = 16_000
    }

    init(_ address: WyomingAddress, on group: any EventLoopGroup, language: String?, log: Logger) {
        (self.address, self.group, self.language, self.log) = (address, group, language, log)
    }

    /// Serves the satellite until the task is cancelled, and connects again after each failure.
    func run(_ session: ClientSession, _ device: DeviceID) async {
        let dialog = SpokenDialog(session: session, device: device) { [weak self] in self?.play($0) }
        self.dialog.withLock { $0 = dialog }
        dialog.start()
        var pauses = Backoff(first: .milliseconds(500), longest: Self.longestPause)
        while !Task.isCancelled {
            do throws(ApusError) {
                let connection = try await WyomingConnection.open(address, on: group, isLasting: true)
                log.notice("Connected to the satellite", metadata: ["apus.address": "\(address)"])
                try await serve(connection) { pauses.reset() }
            } catch {
                end()
                guard error.code != .cancelled else { break }
                log.warning("The satellite is not connected; retrying", metadata: Logger.facts(of: error))
            }
            let pause = pauses.next()
            try? await Task.sleep(for: pause * Double.random(in: 0.5...1))
        }
        end()
        dialog.stop()
    }

    /// - Parameter onAnswer: the other side has sent something: it is a satellite.
    private func serve(_ connection: WyomingConnection, onAnswer: () -> Void) async throws(ApusError) {
        var actions: [SatelliteStateMachine.Action] = []
        let machine = SatelliteStateMachine(.now(), &actions)
        shared.withLock { ($0.connection, $0.machine) = (connection, machine) }
        try perform(actions)
        while true {
            guard let next = shared.withLock({ $0.machine?.nextTick }) else { throw ApusError(.cancelled) }
            var messages: [WyomingMessage] = []
            do throws(ApusError) { messages = try await connection.next(until: next) } catch {
                guard error.code == .deadlineExceeded else { throw error }
            }
            if !messages.isEmpty { onAnswer() }
            for message in messages { try change { $0.received(message, &$1) } }
            try change { $0.tick(.now(), &$1) }
        }
    }

    /// Changes the state, and does what follows from it.
    private func change(
        _ body: (inout SatelliteStateMachine, inout [SatelliteStateMachine.Action]) -> Void
    ) throws(ApusError) {
        let actions = shared.withLock { shared in
            var actions: [SatelliteStateMachine.Action] = []
            guard var machine = shared.machine else { return actions }
            body(&machine, &actions)
            shared.machine = machine
            return actions
        }
        try perform(actions)
    }

    private func perform(_ actions: [SatelliteStateMachine.Action]) throws(ApusError) {
        for action in actions {
            switch action {
            case .send(let message): shared.withLock(\.connection)?.send(message)
            case .begin(let number): begin(number)
            case .sound(let number, let chunk):
                do throws(ApusError) { try shared.withLock(\.microphone)?.add(chunk) } catch {
                    shared.withLock(\.asking)?.cancel()
                    try change { $0.failed(number, error, &$1) }
                }
            case .soundEnded: shared.withLock(\.microphone)?.end()
            case .played(let number): played(number)
            case .close(let error): throw error
            }
        }
    }

    private func begin(_ number: Int) {
        let microphone = SatelliteMicrophone()
        let task = Task { await ask(number, microphone) }
        shared.withLock { shared in
            shared.microphone?.end()
            shared.asking?.cancel()
            (shared.microphone, shared.asking, shared.played) = (microphone, task, nil)
        }
    }

    private func ask(_ number: Int, _ microphone: SatelliteMicrophone) async {
        guard let dialog = dialog.withLock(\.self) else { return }
        do throws(ApusError) {
            let answer = try await dialog.ask(microphone, language: language)
            log.info("Heard", metadata: ["apus.heard": "\(answer.heard)", "apus.reply": "\(answer.turn.reply)"])
            if !answer.turn.id.isEmpty { shared.withLock { $0.played = (number, answer.turn.id) } }
            try? change {
                $0.answered(
                    number, heard: answer.heard, reply: answer.turn.reply, language: answer.turn.language,
                    replyTime: .milliseconds(Int64(answer.replyMs)), .now(), &$1)
            }
        } catch {
            guard error.code != .cancelled else { return }
            log.warning("A sentence was not heard", metadata: Logger.facts(of: error))
            try? change { $0.failed(number, error, &$1) }
        }
    }

    private func played(_ number: Int) {
        guard let dialog = dialog.withLock(\.self),
            let played = shared.withLock({ $0.played }), played.number == number
        else { return }
        Task { [log] in
            do throws(ApusError) { try await dialog.replyPlayed(played.id) } catch {
                log.warning("The end of a reply was not reported", metadata: Logger.facts(of: error))
            }
        }
    }

    /// Sound of a reply, in order, on the event loop of the session.
    private func play(_ event: SpokenDialog.ReplyEvent) {
        let (connection, rate) = shared.withLock { shared in
            if case .began(let rate) = event { shared.rate = rate }
            return (shared.connection, shared.rate)
        }
        let format = WyomingAudioFormat(rate: rate, width: 2, channels: 1)
        switch event {
        case .began: connection?.send(.audioStart(format, timestamp: nil))
        case .sound(let samples):
            var audio = ByteBuffer()
            audio.reserveCapacity(2 * samples.count)
            for sample in samples { audio.writeInteger(sample, endianness: .little) }
            connection?.send(.audioChunk(WyomingAudioChunk(format: format, audio: audio)))
        case .ended: connection?.send(.audioStop(timestamp: nil))
        }
    }

    private func end() {
        let (connection, asking) = shared.withLock { shared in
            defer { shared = Shared() }
            shared.microphone?.end()
            return (shared.connection, shared.asking)
        }
        asking?.cancel()
        connection?.close()
    }
}

/// The sound that a satellite sends for one sentence.
///
/// Concurrency model: any thread; a `Mutex` guards the state.
final class SatelliteMicrophone: AudioCapturable {
    /// The most sound that waits for the start.
    private static let waitingMax = 4 * SpokenDialog.sampleRate

    private struct State {
        var deliver: (@Sendable (CaptureEvent<SoundSamples>) -> Void)?
        var converter: SpeechConverter?
        var waiting: [Int16] = []
        var count = 0
        var isEnded = false
    }

    private let state = Mutex(State())

    func start(_ deliver: @escaping @Sendable (CaptureEvent<SoundSamples>) -> Void) {
        state.withLock { state in
            state.deliver = deliver
            Self.flush(&state)
        }
    }

    func stop() { end() }

    /// - Throws: 10026 if the sound has another format than 16 bits of one or two channels with 8,000 to 48,000 samples
    ///   a second.
    func add(_ chunk: WyomingAudioChunk) throws(ApusError) {
        if let problem = SpeechConverter.problem(with: chunk.format) { throw ApusError(.mediaUnreadable, problem) }
        state.withLock { state in
            if state.converter?.format != chunk.format { state.converter = SpeechConverter(chunk.format) }
            let samples = state.converter?.convert(chunk.audio) ?? []
            guard state.deliver != nil || state.waiting.count + samples.count <= Self.waitingMax else { return }
            state.waiting += samples
            Self.flush(&state)
        }
    }

    func end() {
        state.withLock { state in
            state.isEnded = true
            Self.flush(&state)
        }
    }

    /// Delivers under the lock: the order counts, and the receiver does not call back.
    private static func flush(_ state: inout State) {
        guard let deliver = state.deliver else { return }
        if !state.waiting.isEmpty {
            let time = Int64(state.count) * 1_000_000 / Int64(SpokenDialog.sampleRate)
            let samples = SoundSamples(
                sampleRate: SpokenDialog.sampleRate, ptsMicroseconds: time, samples: state.waiting)
            state.count += state.waiting.count
            state.waiting = []
            deliver(.media(samples))
        }
        if state.isEnded {
            state.deliver = nil
            deliver(.ended)
        }
    }
}
