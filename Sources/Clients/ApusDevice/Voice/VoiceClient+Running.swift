import ApusClient
import ApusContract
public import ApusCore
import ApusTLS
import Foundation
import Logging
import SwiftProtobuf
import Synchronization

/// What a voice client reacts to.
enum VoiceInput: Sendable {
    case connect
    case disconnect
    case reconnect
    case reset
    /// An alarm was set for this time; nil: a clock was set.
    case look(MonotonicTime?)
    case codes(Int, Result<VoiceCodes, ApusError>)
    case answer(Int, VoiceAnswer)
    case link(Int, LinkState, ApusError?)
    case alarmsChanged(Int)
    /// Nil: they could not be listed.
    case alarms(Int, [ClientTimer]?)
}

extension VoiceClient {
    /// The longest time without a look at the wall clock.
    private static let lookInterval = Duration.seconds(60)

    /// Authorizes the device and keeps its session, until the task is cancelled. Call it once, after
    /// ``initialization()``.
    ///
    /// - Throws: 21031 before the initialization, and the second time; 10022 if the certificate authority cannot be
    ///   used; 10021 if the database cannot be read.
    public func run() async throws(ApusError) {
        let setUp = try state.withLock { state throws(ApusError) -> SetUp in
            guard state.setUp.machine.isInitialized else {
                throw ApusError(.badParameter, "run comes after initialization")
            }
            guard !state.isRunning else { throw ApusError(.badParameter, "the client runs already") }
            state.isRunning = true
            return state.setUp
        }
        var runner = try VoiceRunner(self, setUp)
        defer { state.withLock { $0.session }?.close() }
        try await runner.run()
    }

    /// The loop of a client. It owns the machine, and every task that it starts ends with it.
    private struct VoiceRunner {
        private let client: VoiceClient
        private let authorizer: VoiceAuthorizer
        private let database: VoiceDatabase
        private let device: DeviceID
        private let setUp: SetUp
        /// The owner of the token in the database.
        private let owner: String
        private var machine = VoiceAuthorizationStateMachine()
        private var token: VoiceToken?
        /// The earliest look at the clocks that is to come.
        private var alarm: MonotonicTime?
        /// The number of the session. What comes from an earlier one is ignored.
        private var sessionNumber = 0
        /// The alarms are asked for, and have changed since.
        private var isListing = false
        private var listAgain = false

        init(_ client: VoiceClient, _ setUp: SetUp) throws(ApusError) {
            guard let url = setUp.url, let device = setUp.device, let database = setUp.database else {
                throw ApusError(.internalFailure)
            }
            (self.client, self.device, self.database, self.setUp) = (client, device, database, setUp)
            let tls = try TLSClientContext(authorityFile: setUp.authorityFile)
            authorizer = VoiceAuthorizer(http: VoiceHTTP(url: url, tls: tls), client: setUp.client, device: device)
            owner = [url.text, setUp.client, device.rawValue].joined(separator: " ")
        }

        private var now: VoiceTime { VoiceTime(wall: client.wallSeconds(), up: .now()) }

        mutating func run() async throws(ApusError) {
            let stored = try await BlockingWork.run { [database, owner] () throws(ApusError) in
                try database.token(of: owner)
            }
            await withDiscardingTaskGroup { group in
                await perform(machine.start(stored, now), &group)
                setAlarm(&group)
                for await input in client.inputs {
                    await receive(input, &group)
                    setAlarm(&group)
                }
                group.cancelAll()
            }
        }

        /// Makes the client look at the clocks when the machine needs it, and once a minute.
        private mutating func setAlarm(_ group: inout DiscardingTaskGroup) {
            let latest = MonotonicTime.now() + VoiceClient.lookInterval
            let next = machine.nextTick.map { min($0, latest) } ?? latest
            // A later alarm finds nothing to do.
            if let alarm, alarm <= next { return }
            alarm = next
            group.addTask { [feed = client.feed] in
                do { try await Task.sleep(for: max(.zero, next - .now())) } catch { return }
                feed.yield(.look(next))
            }
        }

        private mutating func receive(_ input: VoiceInput, _ group: inout DiscardingTaskGroup) async {
            switch input {
            case .connect:
                client.state.withLock { $0.isConnectWanted = true }
                openSession(&group)
            case .disconnect:
                client.state.withLock { $0.isConnectWanted = false }
                closeSession()
            case .reconnect:
                client.state.withLock { $0.isConnectWanted = true }
                closeSession()
                await perform(machine.hurry(now), &group)
                openSession(&group)
            case .reset: await perform(machine.reset(), &group)
            case .look(let time):
                if time == alarm { alarm = nil }
                await perform(machine.tick(now), &group)
            case .codes(let number, let result):
                await perform(machine.codesReceived(number, result, now), &group)
            case .answer(let number, let answer): await perform(machine.answered(number, answer, now), &group)
            case .link(let number, let link, let error):
                guard number == sessionNumber else { return }
                client.handlers.linkState(link, error)
                switch link {
                case .online:
                    machine.sessionOpened()
                    listAlarms(number, &group)
                case .tokenFailed: await perform(machine.sessionRefused(now), &group)
                case .offline, .kicked: break
                }
            case .alarmsChanged(let number): listAlarms(number, &group)
            case .alarms(let number, let alarms):
                isListing = false
                if listAgain { listAlarms(sessionNumber, &group) }
                guard number == sessionNumber, let alarms else { return }
                await write { database throws(ApusError) in try database.setAlarms(alarms) }
            }
        }

        private mutating func perform(
            _ actions: [VoiceAuthorizationStateMachine.Action], _ group: inout DiscardingTaskGroup
        ) async {
            let (authorizer, feed) = (authorizer, client.feed)
            for action in actions {
                switch action {
                case .requestCodes(let number):
                    group.addTask {
                        do throws(ApusError) {
                            feed.yield(.codes(number, .success(try await authorizer.codes())))
                        } catch {
                            feed.yield(.codes(number, .failure(error)))
                        }
                    }
                case .poll(let number, let deviceCode):
                    group.addTask { feed.yield(.answer(number, await authorizer.token(deviceCode: deviceCode))) }
                case .refresh(let number, let token):
                    group.addTask { feed.yield(.answer(number, await authorizer.refresh(token))) }
                case .show(let authorization): client.handlers.authorization(authorization)
                case .report(let authorization, let error):
                    client.state.withLock { $0.authorization = authorization }
                    setUp.log.info(
                        "The authorization has changed",
                        metadata: ["apus.authorization": "\(authorization.rawValue)"])
                    if authorization == .unrecoverableError { closeSession() }
                    client.handlers.authorizationState(authorization, error)
                case .store(let token):
                    await write { [owner] database throws(ApusError) in try database.store(token, of: owner) }
                case .use(let token):
                    self.token = token
                    closeSession()
                    openSession(&group)
                case .erase:
                    token = nil
                    closeSession()
                    await write { database throws(ApusError) in try database.erase() }
                }
            }
        }

        /// A failure of the disk does not end the client: it continues with what it has in memory.
        private func write(_ body: @escaping @Sendable (VoiceDatabase) throws(ApusError) -> Void) async {
            do throws(ApusError) {
                try await BlockingWork.run { [database] () throws(ApusError) in try body(database) }
            } catch {
                setUp.log.error("The local database cannot be written", metadata: Logger.facts(of: error))
            }
        }

        // MARK: - The session

        private mutating func openSession(_ group: inout DiscardingTaskGroup) {
            let isWanted = client.state.withLock { $0.isConnectWanted && $0.session == nil }
            guard isWanted, let token, machine.reported == .refreshed || machine.reported == .expired else { return }
            sessionNumber += 1
            let (number, feed) = (sessionNumber, client.feed)
            let configuration = ClientConfiguration(
                endpoints: setUp.endpoints, authorityFile: setUp.authorityFile, token: token.token, role: .device,
                agent: "apus-voice")
            let made: ClientSession
            do throws(ApusError) {
                made = try ClientSession(configuration: configuration, log: setUp.log) { link, error in
                    feed.yield(.link(number, link, error))
                }
            } catch {
                return setUp.log.error("A session cannot be made", metadata: Logger.facts(of: error))
            }
            client.state.withLock { $0.session = made }
            made.start()
            client.handlers.session(made)
            made.subscribe(topic: "timers/\(device)") { _ in feed.yield(.alarmsChanged(number)) }
        }

        private mutating func closeSession() {
            sessionNumber += 1
            let closed = client.state.withLock { state in
                defer { state.session = nil }
                return state.session
            }
            guard let closed else { return }
            closed.close()
            client.handlers.session(nil)
        }

        /// Asks for the alarms of the device, which its database keeps.
        private mutating func listAlarms(_ number: Int, _ group: inout DiscardingTaskGroup) {
            guard number == sessionNumber, let session = client.session else { return }
            guard !isListing else { return listAgain = true }
            (isListing, listAgain) = (true, false)
            group.addTask { [device, feed = client.feed] in
                let request = ClientListTimersRequest.with { $0.device = device.rawValue }
                do throws(ApusError) {
                    feed.yield(.alarms(number, try await session.ask(request, timeout: .seconds(10)).timers))
                } catch {
                    // The next link of the session lists them.
                    feed.yield(.alarms(number, nil))
                }
            }
        }
    }
}
