import ApusClient
import ApusContract
import ApusCore
import ApusWyoming
import ApusWyomingServer
import Logging
import NIOCore
import Synchronization

/// Serves the dialog of a device to clients of the Wyoming protocol, until its task is cancelled.
///
/// Concurrency model: any thread. A `Mutex` guards the machine; its actions are performed after it was left.
final class ConversationAgent: Sendable {
    private static let tickInterval = Duration.seconds(1)
    /// What is being said at the end may take this long.
    private static let endTime = Duration.seconds(5)
    private static let pauses = (first: Duration.milliseconds(100), longest: Duration.seconds(2))

    private struct Shared {
        var machine: ConversationStateMachine
        var connections: [Int: WyomingServerConnection] = [:]
        var lastConnection = 0
        var saying: Task<Void, Never>?
    }

    private let connectionsMax: Int
    private let session: ClientSession
    private let device: DeviceID
    private let log: Logger
    private let limited: LogLimiter
    private let shared: Mutex<Shared>
    private let ended: AsyncStream<Void>
    private let feed: AsyncStream<Void>.Continuation

    /// - Parameter connectionsMax: further connections are closed at once.
    init(
        _ session: ClientSession, _ device: DeviceID, _ limits: ConversationStateMachine.Limits, connectionsMax: Int,
        log: Logger
    ) {
        (self.session, self.device, self.log, limited) = (session, device, log, LogLimiter(log))
        self.connectionsMax = connectionsMax
        shared = Mutex(Shared(machine: ConversationStateMachine(info: Self.info, limits: limits)))
        (ended, feed) = AsyncStream.makeStream(bufferingPolicy: .bufferingOldest(1))
    }

    /// What `describe` is answered with. The languages are those of the cluster's templates.
    static let info: WyomingInfo = {
        let names = ["en": "English", "zh": "中文"]
        let models = names.sorted { $0.key < $1.key }.map { language, name in
            WyomingInfo.Model(.init(name: "apus-\(language)", description: name), languages: [language])
        }
        let program = WyomingInfo.Artifact(name: "Apus", description: "Dialogs with the devices of an Apus cluster")
        return WyomingInfo(handling: [.init(program, models: models, controlsHome: true)])
    }()

    /// Listens, and serves.
    ///
    /// - Throws: 10019 if the address is in use or cannot be used.
    func run(_ address: WyomingAddress, on group: any EventLoopGroup) async throws(ApusError) {
        let listener = try await WyomingListener(address, connectionsMax: connectionsMax, on: group, log: log) {
            self.connected($0)
        }
        log.notice("The conversation agent listens", metadata: ["apus.address": "\(listener.address)"])
        while (try? await Task.sleep(for: Self.tickInterval)) != nil {
            change { $0.tick(at: .now(), &$1) }
            limited.writeLeftOut()
        }
        listener.refuse()
        change { $0.stop(at: .now(), &$1) }
        // A task of its own: this one is cancelled, and could not wait.
        await Task { await self.waitForEnd() }.value
        shared.withLock(\.saying)?.cancel()
        await listener.close()
    }

    private func waitForEnd() async {
        await withTaskGroup(of: Void.self) { group in
            group.addTask { [ended] in for await _ in ended { break } }
            group.addTask { try? await Task.sleep(for: Self.endTime) }
            await group.next()
            group.cancelAll()
        }
    }

    private func connected(_ connection: WyomingServerConnection) -> Client {
        let name = VoiceDialog.newID()
        let number = shared.withLock { shared in
            shared.lastConnection += 1
            shared.connections[shared.lastConnection] = connection
            shared.machine.opened(shared.lastConnection, conversation: name, at: .now())
            return shared.lastConnection
        }
        return Client(self, number)
    }

    /// What serves one connection.
    private final class Client: WyomingServing {
        private let agent: ConversationAgent
        private let number: Int

        init(_ agent: ConversationAgent, _ number: Int) { (self.agent, self.number) = (agent, number) }

        func received(_ message: WyomingMessage) {
            agent.change { [number] in $0.received(message, number, at: .now(), &$1) }
        }

        func closed() {
            agent.shared.withLock { shared in
                shared.machine.closed(number)
                shared.connections[number] = nil
            }
        }
    }

    private func change(
        _ body: (inout ConversationStateMachine, inout [ConversationStateMachine.Action]) -> Void
    ) {
        var actions: [ConversationStateMachine.Action] = []
        shared.withLock { body(&$0.machine, &actions) }
        for action in actions {
            switch action {
            case .send(let number, let message): shared.withLock { $0.connections[number] }?.send(message)
            case .close(let number): shared.withLock { $0.connections[number] }?.close()
            case .say(let sentence):
                let task = Task {
                    let answer = await self.say(sentence)
                    self.change { $0.answered(sentence.number, answer, at: .now(), &$1) }
                }
                shared.withLock { $0.saying = task }
            case .end: feed.yield()
            }
        }
    }

    private func say(_ sentence: ConversationStateMachine.Sentence) async -> ConversationStateMachine.Answer {
        do throws(ApusError) {
            if sentence.endsQuestion {
                try await repeating(until: sentence.deadline) { [session, device] _ throws(ApusError) in
                    _ = try await session.stopDialog(of: device)
                }
            }
            // One id for all attempts: the sentence is carried out once, also if a node dies.
            let id = VoiceDialog.newID()
            let turn = try await repeating(until: sentence.deadline) { [session, device] timeout throws(ApusError) in
                try await session.say(
                    sentence.text, to: device, language: sentence.language, id: id, timeout: timeout)
            }
            return Self.answer(turn)
        } catch {
            limited.log(.warning, "A text was not said", metadata: Logger.facts(of: error))
            return .failed(error)
        }
    }

    private static func answer(_ turn: ClientDialogTurn) -> ConversationStateMachine.Answer {
        switch turn.outcome {
        case .notUnderstood, .interrupted, .nothingHeard: .notHandled(turn.reply)
        case .asked: .asked(turn.reply)
        case .unspecified, .done, .waiting, .failed, .refused, .UNRECOGNIZED: .handled(turn.reply)
        }
    }

    private func repeating<R: Sendable>(
        until deadline: MonotonicTime, _ attempt: (Duration) async throws(ApusError) -> R
    ) async throws(ApusError) -> R {
        var pauses = Backoff(first: Self.pauses.first, longest: Self.pauses.longest)
        while true {
            do throws(ApusError) {
                return try await attempt(try deadline.timeLeft())
            } catch {
                let pause = pauses.next()
                guard VoiceDialog.mayRepeat(error), MonotonicTime.now() + pause < deadline,
                    (try? await Task.sleep(for: pause)) != nil
                else { throw error }
            }
        }
    }
}
