package import ApusCore

/// The protocol of one EVS connection (docs/evs.md): what a device may send when, what is asked of the cluster on its
/// word, and what it is answered.
///
/// **Sign-in.** The token comes with the upgrade, or with the first request. Requests that come before the session is
/// open wait, within bounds.
///
/// **Synchronization** (VA-15) precedes everything else: the first request after each connection, whichever it is,
/// makes it with the context of that request. What comes meanwhile waits.
///
/// **Requests** are answered once each, with `is_last`, in the order in which the cluster answers. What goes wrong is
/// answered with `system.error`; after too many texts that are no requests the connection is closed.
///
/// **Directives** reach a device as commands (docs/commands.md). EVS has no acknowledgement: what was written to the
/// socket is answered as carried out. A directive that comes again over the same connection is not sent again.
///
/// Pure: no I/O. Time comes in.
package struct EVSConnectionStateMachine {
    /// What is asked of the cluster.
    package enum Call: Equatable, Sendable {
        /// The device's commands, as events.
        case follow
        case synchronize(context: String)
        case say(id: String, text: String, context: String)
        case event(id: String, payload: String, context: String)
        case spoken(id: String)
        /// A command has ended. Nil: it was carried out.
        case answer(command: String, ErrorCode?)
    }

    /// What the cluster has answered.
    package enum Answer: Equatable, Sendable {
        case done
        case turn(Turn)
        case failed(ApusError)
    }

    /// A sentence with its reply.
    package struct Turn: Equatable, Sendable {
        package var id: String
        package var reply: String
        /// The reply is a question.
        package var asks: Bool

        package init(id: String, reply: String, asks: Bool) { (self.id, self.reply, self.asks) = (id, reply, asks) }
    }

    package enum Action: Equatable, Sendable {
        /// Opens the session of the token's device. ``opened(as:at:_:)`` follows, or the end of the connection.
        case signIn(token: String)
        /// ``answered(_:_:_:)`` follows with the number.
        case ask(UInt32, Call)
        case send(EVSResponses)
        case close(ApusError)
    }

    package struct Limits: Sendable {
        /// Requests that wait for the session or the synchronization.
        package var waitingMax = 8
        /// Requests without an answer.
        package var requestsMax = 8
        /// Texts that are no requests. After one more the connection is closed.
        package var wrongTextsMax = 16
        /// The interval of `system.ping`, as devices expect it.
        package var pingInterval = Duration.seconds(120)

        package init() {}
    }

    /// Commands whose repetition is recognized.
    private static let commandsMax = 64

    /// The time in which a device may answer a question, in milliseconds, as it is notified.
    private static let replyTimeout = 30_000

    private struct Request {
        var content: EVSRequest
        /// The id of the sentence or the event, which repetitions share.
        var sentence: String
    }

    private enum State {
        case new
        case signingIn
        case open(isSynchronized: Bool)
        case closed
    }

    private enum Pending {
        case follow
        case synchronization
        case request(Request)
        case command
    }

    private let limits: Limits
    private var state = State.new
    private var device = ""
    private var waiting: [Request] = []
    private var pending: [UInt32: Pending] = [:]
    private var lastCall: UInt32 = 0
    private var wrongTextCount = 0
    private var commands: [String] = []
    private var nextPing = MonotonicTime.zero

    package init(limits: Limits = Limits()) { self.limits = limits }

    /// Requests without an answer.
    package var openCount: Int {
        waiting.count
            + pending.values.count {
                if case .request = $0 { true } else { false }
            }
    }

    // MARK: - The session

    /// The connection was upgraded.
    ///
    /// - Parameter token: of the upgrade; nil: the first request has it.
    package mutating func connected(token: String?, _ actions: inout [Action]) {
        guard case .new = state, let token else { return }
        state = .signingIn
        actions.append(.signIn(token: token))
    }

    /// The session is open.
    ///
    /// - Parameters:
    ///   - device: of the token.
    ///   - seconds: the cluster's time.
    package mutating func opened(
        as device: String, at now: MonotonicTime, seconds: Int64, _ actions: inout [Action]
    ) {
        guard case .signingIn = state else { return }
        self.device = device
        state = .open(isSynchronized: false)
        ask(.follow, .follow, &actions)
        ping(at: now, seconds: seconds, &actions)
        proceed(&actions)
    }

    /// Nothing is sent after this.
    package mutating func closed() {
        state = .closed
        (waiting, pending) = ([], [:])
    }

    // MARK: - Events

    /// - Parameter sentence: 32 hexadecimal digits that repetitions of the request share.
    package mutating func received(_ request: EVSRequest, sentence: String, _ actions: inout [Action]) {
        switch state {
        case .closed: return
        case .new:
            guard let token = request.token else {
                return close(ApusError(.tokenInvalid, "the first request has no authorization"), &actions)
            }
            state = .signingIn
            actions.append(.signIn(token: token))
        case .signingIn, .open: break
        }
        let request = Request(content: request, sentence: sentence)
        guard waiting.count < limits.waitingMax, openCount < limits.requestsMax else {
            return fail(request, ApusError(.overloaded, "too many requests wait for their answers"), &actions)
        }
        waiting.append(request)
        proceed(&actions)
    }

    /// The device has sent something that is no request.
    package mutating func receivedWrong(_ error: ApusError, _ actions: inout [Action]) {
        if case .closed = state { return }
        wrongTextCount += 1
        guard wrongTextCount <= limits.wrongTextsMax else { return close(error, &actions) }
        actions.append(.send(EVSResponses([Self.item(error)])))
    }

    package mutating func answered(_ call: UInt32, _ answer: Answer, _ actions: inout [Action]) {
        switch pending.removeValue(forKey: call) {
        case nil, .command: break
        case .follow:
            // Without it the device would miss its directives: it connects again.
            if case .failed(let error) = answer { close(error, &actions) }
        case .synchronization:
            guard case .open = state else { return }
            if case .failed(let error) = answer {
                let request = waiting.isEmpty ? nil : waiting.removeFirst()
                state = .open(isSynchronized: false)
                if let request { fail(request, error, &actions) }
            } else {
                state = .open(isSynchronized: true)
            }
            proceed(&actions)
        case .request(let request): reply(answer, to: request, &actions)
        }
    }

    /// The cluster has a command for the device.
    ///
    /// - Parameters:
    ///   - id: of the command.
    ///   - isAction: it is an action, and not raw data.
    ///   - directive: of a dialog; nil: another command.
    package mutating func received(
        command id: String, isAction: Bool, directive: (namespace: String, name: String, payload: JSONValue)?,
        _ actions: inout [Action]
    ) {
        guard case .open = state else { return }
        guard let directive else {
            return ask(.answer(command: id, isAction ? .actionUnknown : .callbackUnknown), .command, &actions)
        }
        if !commands.contains(where: { $0.isExactly(id) }) {
            commands = commands.suffix(Self.commandsMax - 1) + [id]
            let isCustom = directive.namespace.isExactly("Custom")
            let name = isCustom ? EVSName.custom : "\(directive.namespace).\(directive.name)"
            actions.append(.send(EVSResponses(trace: id, [.init(name, directive.payload)])))
        }
        ask(.answer(command: id, nil), .command, &actions)
    }

    /// Time has passed.
    package mutating func tick(at now: MonotonicTime, seconds: Int64, _ actions: inout [Action]) {
        guard case .open = state, now >= nextPing else { return }
        ping(at: now, seconds: seconds, &actions)
    }

    // MARK: - Requests

    /// Carries out what waits, as far as it can.
    private mutating func proceed(_ actions: inout [Action]) {
        guard case .open(let isSynchronized) = state, let first = waiting.first else { return }
        guard isSynchronized else {
            let isAsked = pending.values.contains { if case .synchronization = $0 { true } else { false } }
            if !isAsked { ask(.synchronize(context: first.content.contextText), .synchronization, &actions) }
            return
        }
        let ready = waiting
        waiting = []
        for request in ready { carryOut(request, &actions) }
    }

    private mutating func carryOut(_ request: Request, _ actions: inout [Action]) {
        let content = request.content
        if let named = content.device, !named.isExactly(device) {
            return fail(request, ApusError(.notAllowed, "the token is of another device"), &actions)
        }
        switch EVSName(rawValue: content.name) {
        case .stateSync, .exception, .playbackProgress, .ringProgress: done(request, &actions)
        case .textIn:
            guard let text = content.payload["query"]?.string else {
                return fail(request, ApusError(.badParameter, "there is no query"), &actions)
            }
            ask(
                .say(id: request.sentence, text: text, context: content.contextText), .request(request), &actions)
        case .customEvent:
            ask(
                .event(
                    id: request.sentence, payload: content.payload.text, context: content.contextText),
                .request(request), &actions)
        case .speechProgress:
            guard content.payload["type"]?.string?.isExactly("FINISHED") == true,
                let id = content.payload["resource_id"]?.string
            else { return done(request, &actions) }
            ask(.spoken(id: id), .request(request), &actions)
        case nil:
            fail(request, ApusError(.notImplemented, "\(content.name) is not supported; see docs/evs.md"), &actions)
        }
    }

    private mutating func reply(_ answer: Answer, to request: Request, _ actions: inout [Action]) {
        switch answer {
        case .failed(let error): fail(request, error, &actions)
        case .done: done(request, &actions)
        case .turn(let turn):
            var items: [EVSResponses.Item] = []
            if !turn.reply.isEmpty {
                items.append(
                    .init(
                        EVSName.audioOut,
                        [
                            "type": .string("TTS"), "resource_id": .string(turn.id),
                            "metadata": .object([.init(name: "text", value: .string(turn.reply))]),
                        ]))
            }
            if turn.asks {
                items.append(
                    .init(
                        EVSName.expectReply,
                        ["reply_key": .string(turn.id), "timeout": .number("\(Self.replyTimeout)")]))
            }
            actions.append(.send(EVSResponses(to: request.content.id, trace: turn.id, items)))
        }
    }

    private mutating func ask(_ call: Call, _ waits: Pending, _ actions: inout [Action]) {
        lastCall &+= 1
        pending[lastCall] = waits
        actions.append(.ask(lastCall, call))
    }

    private mutating func ping(at now: MonotonicTime, seconds: Int64, _ actions: inout [Action]) {
        nextPing = now + limits.pingInterval
        actions.append(.send(EVSResponses([.init(EVSName.ping, ["timestamp": .number("\(seconds)")])])))
    }

    private mutating func close(_ error: ApusError, _ actions: inout [Action]) {
        closed()
        actions.append(.close(error))
    }

    private func done(_ request: Request, _ actions: inout [Action]) {
        actions.append(.send(EVSResponses(to: request.content.id, [])))
    }

    private func fail(_ request: Request, _ error: ApusError, _ actions: inout [Action]) {
        actions.append(.send(EVSResponses(to: request.content.id, [Self.item(error)])))
    }

    /// An error as devices have it: one of five codes, and the number of the catalogue beside it.
    package static func item(_ error: ApusError) -> EVSResponses.Item {
        .init(
            EVSName.error,
            [
                "code": .number("\(EVSName.code(of: error.code))"), "message": .string(error.message),
                "apus_code": .number("\(error.code.number)"),
            ])
    }
}
