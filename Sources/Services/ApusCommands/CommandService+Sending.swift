package import ApusClientAPI
import ApusCluster
import ApusContract
package import ApusCore
package import ApusSessions
import ApusThings
package import Foundation
import SwiftProtobuf

// Commands on their way: at the node of the app's connection, and at the node of the device's owner.

/// A command that was checked, and whose request waits for a status.
private struct CommandRequest {
    let device: DeviceID
    /// Without its waiter. The time to live is 0 if the command ends with its request.
    var submit: CommandSubmit
    let until: CommandStatus
    let deadline: MonotonicTime
    /// Without the request's id: the command's own id makes a repetition harmless.
    let call: EntityCall

    /// - Throws: 10005 after the deadline.
    func timeLeft() throws(ApusError) -> Duration { try deadline.timeLeft() }

    /// The message to the queue.
    ///
    /// - Parameter left: the time to live of a command that ends with its request.
    func submit(_ waiter: CommandWaiter, _ left: Duration) -> CommandSubmit {
        var submit = submit
        submit.waiter = waiter
        if submit.ttlMs == 0 { submit.ttlMs = Int64(left.milliseconds) }
        return submit
    }

    /// What ends with its request is replicated only, unless it is long.
    var queue: CommandQueue {
        submit.ttlMs == 0 && submit.content.count <= CommandConfiguration.liveContentByteCountMax ? .live : .kept
    }
}

extension CommandService {
    private static let askTimeout = Duration.seconds(3)
    /// A request asks again after this time, and then after twice the time before.
    private static let askAgainMin = Duration.milliseconds(200)
    private static let askAgainMax = Duration.seconds(2)
    /// A request waits at the owner's node for so long, and then at its own. At most half of its time.
    private static let ownerWaitMax = Duration.seconds(1)

    /// Sends a command, and waits until it has a status.
    ///
    /// - Parameters:
    ///   - ttl: nil: the device must not be offline, and the command ends at the deadline.
    ///   - until: the status to wait for.
    /// - Throws: 8000 if the device is offline and there is no time to live, 8002, 8003 and 12004 if this client has no
    ///   such device, 20101 and 20102 if the schema of the device's product does not allow the action or its argument,
    ///   21002 if the status is not reached in time; otherwise as ``CommandState/submit(_:_:at:_:)``.
    func send(
        _ content: CommandContent, id: Data, to device: DeviceID, noAnswer: Bool, ttl: Duration?, until: CommandStatus,
        _ call: ClientCall
    ) async throws(ApusError) -> CommandEntry {
        try sessions.use(device, in: call.session)
        if let action = content.action { try Self.check(action, ttl: ttl, call.session) }
        var request = Self.request(content, id: id, to: device, until: until, call)
        (request.submit.noAnswer, request.submit.ttlMs) = (noAnswer, Int64((ttl ?? .zero).milliseconds))
        if let ttl, call.session.allowedDevices != nil {
            // Temporary access: the command is not kept for longer than the token is valid.
            let left = call.session.token.seconds(of: ttl, at: view.clock.wallSeconds()) * 1000
            request.submit.ttlMs = max(1, min(request.submit.ttlMs, left))
        }
        guard let entry = try await sendToOwner(request, call.session.account) else {
            return try await accept(request, call.session.account)
        }
        return entry.hasReached(until) ? entry : try await follow(request, accepted: entry)
    }

    package func value(
        of leaf: String, _ device: DeviceID, _ presence: Presence, _ call: ClientCall
    ) async throws(ApusError) -> (json: String, timeMs: Int64) {
        guard presence.online != .offline else { throw ApusError(.targetOffline) }
        let entry = try await follow(
            Self.request(
                CommandContent(reading: leaf), id: CommandContent.randomID(), to: device, until: .answered, call))
        guard entry.code == 0 else { throw ApusError(ErrorCode(number: entry.code), entry.message) }
        return (try JSONValue(checking: String(decoding: entry.answer, as: UTF8.self)).text, entry.changedMs)
    }

    /// Has a device carry out an action for a service, on the word of a client (docs/authority.md), and waits for the
    /// answer. The command ends with this request.
    ///
    /// - Parameter id: 16 bytes; a repetition with the same id is carried out once.
    /// - Returns: what the device has answered, in JSON; may be empty.
    /// - Throws: the error that the device answers; 8000 if the device is offline, 8002, 8003, 12004 and 20011 if the
    ///   account may not control it, 12004 for an action that gives a client access, 20101 and 20102 if the schema of
    ///   the device's product does not allow the action or its argument, 21002 if the device does not answer in time.
    package func act(
        _ content: CommandContent, id: Data, on device: DeviceID, by authority: Authority, timeout: Duration
    ) async throws(ApusError) -> String {
        guard content.action != ClientCheckLocalAccessRequest.action else { throw ApusError(.notAllowed) }
        let submit = CommandSubmit.with {
            ($0.id, $0.path, $0.content) = (id, content.path, content.bytes)
            ($0.sender, $0.account) = (authority.identities.first ?? "", authority.account.rawValue)
            $0.token = CommandToken(authority)
        }
        var call = EntityCall()
        call.identity = submit.sender
        let request = CommandRequest(
            device: device, submit: submit, until: .answered, deadline: .now() + timeout, call: call)
        let entry: CommandEntry
        if let sent = try await sendToOwner(request, authority.account) {
            entry = sent.hasReached(.answered) ? sent : try await follow(request, accepted: sent)
        } else {
            entry = try await accept(request, authority.account)
        }
        guard entry.code == 0 else { throw ApusError(ErrorCode(number: entry.code), entry.message) }
        return String(decoding: entry.answer, as: UTF8.self)
    }

    private static func request(
        _ content: CommandContent, id: Data, to device: DeviceID, until: CommandStatus, _ call: ClientCall
    ) -> CommandRequest {
        let submit = CommandSubmit.with {
            ($0.id, $0.path, $0.content) = (id, content.path, content.bytes)
            ($0.sender, $0.account) = (call.session.access.rawValue, call.session.account.rawValue)
            $0.token = CommandToken(Authority(call.session))
            if content.action == ClientCheckLocalAccessRequest.action {
                $0.origin = .with {
                    ($0.user, $0.expiresS) = (RelayUser(call.session).text, call.session.token.expires)
                }
            }
        }
        return CommandRequest(
            device: device, submit: submit, until: until, deadline: call.deadline, call: call.entityCall.withoutRequest)
    }

    /// Checks a request for local access (docs/local-access.md); other actions need no further right.
    ///
    /// - Throws: 12004 if the token is for certain devices only, which does not include access that outlasts it; 21031
    ///   if the command is to be kept.
    private static func check(_ action: String, ttl: Duration?, _ session: Session) throws(ApusError) {
        guard action == ClientCheckLocalAccessRequest.action else { return }
        guard session.allowedDevices == nil else {
            throw ApusError(.notAllowed, "the token is for certain devices only")
        }
        guard ttl == nil else { throw ApusError(.badParameter, "local access is given at once, or not at all") }
    }

    /// Checks the right of the account, and submits the command.
    ///
    /// - Parameter time: as for ``follow(_:accepted:for:)``.
    private func accept(
        _ request: CommandRequest, _ account: AccountID, for time: Duration? = nil
    ) async throws(ApusError) -> CommandEntry {
        let access = try await sessions.access(to: request.device, for: account, control: true).get()
        var request = request
        request.submit.content = CommandContent.content(
            request.submit.content, of: request.submit.path, since: access.dataSince)
        let presence = access.presence
        if let action = CommandContent.action(of: request.submit.path) {
            try await products.checkAction(
                action, json: ArraySlice(request.submit.content), of: request.device, timeout: try request.timeLeft())
        }
        guard request.submit.ttlMs == 0, presence.online == .offline else {
            return try await follow(request, for: time)
        }
        // The request may be a repetition, of one that the device received before it lost its connection.
        guard let known = try await known(request) else { throw ApusError(.targetOffline) }
        return try await follow(request, accepted: known, for: time)
    }

    /// The command, if it was accepted before.
    private func known(_ request: CommandRequest) async throws(ApusError) -> CommandEntry? {
        let look = CommandAwait.with { $0.id = request.submit.id }
        let report = try await ref(request.queue, request.device).ask(look, timeout: try request.timeLeft())
        guard report.hasEntry, report.entry.isSame(as: request.submit) else { return nil }
        return report.entry
    }

    /// Submits a command that was checked, unless it is accepted already, and waits until it has the status.
    ///
    /// - Parameter time: it is returned after this time whatever its status; nil: at the deadline this throws 21002.
    private func follow(
        _ request: CommandRequest, accepted: CommandEntry? = nil, for time: Duration? = nil
    ) async throws(ApusError) -> CommandEntry {
        let waiter = CommandWaiter.with { ($0.node, $0.until) = (view.local.name.rawValue, request.until) }
        let wait = CommandWait(until: request.until)
        let key = Waiting(device: request.device.rawValue, id: request.submit.id)
        begin(wait, for: key)
        defer { end(wait, for: key) }
        let queue = ref(request.queue, request.device)
        let end = time.map { min(request.deadline, .now() + $0) } ?? request.deadline
        var entry = accepted ?? CommandEntry()
        if accepted == nil {
            let left = try request.timeLeft()
            entry = try await queue.ask(request.submit(waiter, left), timeout: left, call: request.call).entry
        }
        // The queue does not know yet that this node waits for a command that another one has submitted.
        var pauses = Backoff(first: Self.askAgainMin, longest: Self.askAgainMax)
        var pause = accepted == nil ? pauses.next() : .zero
        while !entry.hasReached(request.until) {
            guard !Task.isCancelled else { throw ApusError(.cancelled) }
            var left = end - .now()
            if pause > .zero, left > .zero {
                if let reached = await wait.reached(within: min(pause, left)) { return reached }
                left = end - .now()
            }
            guard left > .zero else {
                guard time == nil else { return entry }
                throw entry.timedOut
            }
            let again = CommandAwait.with { ($0.id, $0.waiter) = (request.submit.id, waiter) }
            if let report = try? await queue.ask(again, timeout: min(Self.askTimeout, left)) {
                guard report.hasEntry else {
                    throw ApusError(.answerTimedOut, "nothing is known of the command any more")
                }
                entry = report.entry
            }
            pause = pauses.next()
        }
        return entry
    }

    // MARK: - At the node of the owner

    /// Sends the command with one message to the node of the device's owner, which checks the right and waits for a
    /// moment. Nil if that is this node, or if its answer is lost: the command can be submitted again, since its id
    /// makes a repetition harmless.
    private func sendToOwner(
        _ request: CommandRequest, _ account: AccountID
    ) async throws(ApusError) -> CommandEntry? {
        let left = try request.timeLeft()
        let message = CommandRun.with {
            ($0.device, $0.account, $0.submit) = (request.device.rawValue, account.rawValue, request.submit)
            ($0.until, $0.leftMs) = (request.until, Int64(left.milliseconds))
        }
        switch try await entities.askOwner(of: request.queue.address(request.device).shard, message, timeout: left) {
        case .reply(let report): return report.entry
        case .isHere, .isLost: return nil
        }
    }

    /// A command that another node sends here, the owner's.
    func run(_ message: CommandRun) async throws(ApusError) -> CommandReport {
        guard let device = DeviceID(rawValue: message.device), let account = AccountID(rawValue: message.account) else {
            throw ApusError(.malformed)
        }
        let left = Duration.milliseconds(message.leftMs)
        var call = EntityCall()
        call.identity = message.submit.sender
        var submit = message.submit
        submit.account = account.rawValue
        let request = CommandRequest(
            device: device, submit: submit, until: message.until, deadline: .now() + left, call: call)
        return CommandReport(entry: try await accept(request, account, for: min(left / 2, Self.ownerWaitMax)))
    }
}

extension EntityCall {
    /// The command's own id makes a repetition harmless.
    fileprivate var withoutRequest: EntityCall {
        var call = self
        call.request = nil
        return call
    }
}

extension CommandEntry {
    fileprivate var timedOut: ApusError { ApusError(.answerTimedOut, "the command is \(status.word)") }
}
