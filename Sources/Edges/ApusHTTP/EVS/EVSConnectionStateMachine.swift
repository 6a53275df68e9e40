package import ApusCore
package import ApusMedia
package import NIOCore

/// The protocol of one EVS connection (docs/evs.md): what a device may send when, what is asked of the cluster on its
/// word, and what it is answered.
///
/// **Sign-in.** The token comes with the upgrade, or with the first request. Requests that come before the session is
/// open wait, within bounds.
///
/// **Synchronization** (VA-15) precedes everything else: the first request after each connection, whichever it is,
/// makes it with the context of that request. What comes meanwhile waits.
///
/// **Requests** are answered once each, with `is_last`, in the order in which the cluster answers. Errors are
/// answered with `system.error`; after too many texts that are no requests the connection is closed.
///
/// **Sound.** `recognizer.audio_in` begins a sentence, and the binary messages that follow are its sound. The device's
/// microphone is a channel of the cluster, and the sentence is heard as that of any other device (`speech.listen`). The
/// device is notified with `recognizer.stop_capture` when the sentence has ended. If it ends it itself, silence
/// follows, in which the end is found. Another request of this kind, or `__CANCEL__`, ends the sentence before, which
/// is then not carried out unless it was heard already. Sound beyond ``Limits/soundByteCountMax`` is dropped.
///
/// **Directives** reach a device as commands (docs/commands.md). EVS has no acknowledgement: what was written to the
/// socket is answered as carried out. A directive that comes again over the same connection is not sent again.
///
/// Pure: no I/O. Time comes in.
package struct EVSConnectionStateMachine {
    /// What is asked of the cluster.
    package enum Call: Equatable, Sendable {
        /// The events of a topic: the device's commands, or the changes of its dialog.
        case follow(topic: String)
        case synchronize(context: String)
        case say(id: String, text: String, context: String)
        /// Hears a sentence of the microphone's channel, from this position on.
        case listen(id: String, FramePosition, context: String)
        case event(id: String, payload: String, context: String)
        case spoken(id: String)
        /// The dialog is to be idle.
        case stop
        /// A command has ended. Nil: it was carried out.
        case answer(command: String, ErrorCode?)
    }

    /// What the cluster has answered.
    package enum Answer: Equatable, Sendable {
        case done
        case turn(Turn)
        case heard(Heard)
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

    /// A sentence that was heard.
    package struct Heard: Equatable, Sendable {
        /// Empty: nothing was said, or it was not understood as words.
        package var text: String
        /// Nil where nothing was carried out.
        package var turn: Turn?
        /// Where the spoken reply is; nil: there is none.
        package var address: String?

        package init(text: String, turn: Turn?, address: String?) {
            (self.text, self.turn, self.address) = (text, turn, address)
        }
    }

    package enum Action: Equatable, Sendable {
        /// Opens the session of the token's device. ``opened(as:at:_:)`` follows, or the end of the connection.
        case signIn(token: String)
        /// ``answered(_:_:_:)`` follows with the number.
        case ask(UInt32, Call)
        /// The answer to a call is not waited for any more.
        case cancel(UInt32)
        /// A sentence begins at the microphone. ``began(_:at:_:)`` or ``microphoneFailed(_:_:_:)`` follows with the
        /// number.
        case begin(Int)
        /// Sound of the sentence that has begun last: L16, little endian, 16,000 samples a second.
        case sound(ByteBuffer)
        /// Silence follows, until the sentence is over.
        case silence
        /// The sentence is over: the microphone is closed.
        case end
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
        /// The sound of one sentence, in bytes: 20 s. The longest sentence that is heard is shorter.
        package var soundByteCountMax = 640_000
        /// The sound that waits for the session or the synchronization, in bytes: 2 s. More is dropped.
        package var earlyByteCountMax = 64_000

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

        /// Sound follows it.
        var isSpoken: Bool { EVSName(rawValue: content.name) == .audioIn }
    }

    private enum State {
        case new
        case signingIn
        case open(isSynchronized: Bool)
        case closed
    }

    /// A sentence that the device speaks.
    private struct Hearing {
        var number: Int
        var request: Request
        /// The node finds the end.
        var isEndFound: Bool
        var byteCount = 0
        /// The device has ended it, or was notified that it has ended.
        var isStopped = false
        /// The device was notified of its text.
        var isReported = false
        /// `speech.listen`; nil: it has not begun.
        var call: UInt32?
    }

    private enum Pending {
        case follow
        case synchronization
        case request(Request)
        /// Its answer means nothing to the device.
        case nothing
    }

    private let limits: Limits
    private var state = State.new
    private var device = ""
    private var waiting: [Request] = []
    private var pending: [UInt32: Pending] = [:]
    private var lastCall: UInt32 = 0
    private var wrongTextCount = 0
    private var commands: [String] = []
    private var hearing: Hearing?
    private var lastHearing = 0
    /// Sound of a sentence whose request waits, and whether it has ended.
    private var early = (sound: ByteBuffer(), isEnded: false)
    private var nextPing = MonotonicTime.zero

    /// The requests that were refused since too many waited.
    package private(set) var refusedCount = 0
    /// The sound that was dropped beyond the bounds, in bytes.
    package private(set) var droppedByteCount = 0

    package init(limits: Limits = Limits()) { self.limits = limits }

    /// Requests without an answer.
    package var openCount: Int {
        waiting.count
            + pending.values.count {
                if case .request = $0 { true } else { false }
            } + (hearing.map { $0.call == nil } == true ? 1 : 0)
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
        ask(.follow(topic: "commands/own"), .follow, &actions)
        ping(at: now, seconds: seconds, &actions)
        proceed(&actions)
    }

    /// Nothing is sent after this.
    package mutating func closed() {
        state = .closed
        (waiting, pending, hearing, early) = ([], [:], nil, (ByteBuffer(), false))
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
            refusedCount += 1
            return fail(request, ApusError(.overloaded, "too many requests wait for their answers"), &actions)
        }
        if request.isSpoken {
            dropWaitingSentence(&actions)
            early = (ByteBuffer(), false)
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
        case nil, .nothing: break
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
        case .request(let request):
            let hearing = finish(call, &actions)
            reply(answer, to: request, hearing, &actions)
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
            return ask(.answer(command: id, isAction ? .actionUnknown : .callbackUnknown), .nothing, &actions)
        }
        if !commands.contains(where: { $0.isExactly(id) }) {
            commands = commands.suffix(Self.commandsMax - 1) + [id]
            let isCustom = directive.namespace.isExactly("Custom")
            let name = isCustom ? EVSName.custom : "\(directive.namespace).\(directive.name)"
            actions.append(.send(EVSResponses(trace: id, [.init(name, directive.payload)])))
        }
        ask(.answer(command: id, nil), .nothing, &actions)
    }

    /// Time has passed.
    package mutating func tick(at now: MonotonicTime, seconds: Int64, _ actions: inout [Action]) {
        guard case .open = state, now >= nextPing else { return }
        ping(at: now, seconds: seconds, &actions)
    }

    // MARK: - Sound

    /// Sound of the sentence that the device speaks. Without one, it belongs to a sentence that has ended already.
    package mutating func received(sound: ByteBuffer, _ actions: inout [Action]) {
        if waiting.contains(where: \.isSpoken), !early.isEnded {
            let room = limits.earlyByteCountMax - early.sound.readableBytes
            early.sound.writeBytes(sound.readableBytesView.prefix(room))
            droppedByteCount += max(0, sound.readableBytes - room)
            return
        }
        guard let hearing, !hearing.isStopped else { return }
        let rest = limits.soundByteCountMax - hearing.byteCount
        let part = sound.getSlice(at: sound.readerIndex, length: min(rest, sound.readableBytes)) ?? sound
        self.hearing?.byteCount += part.readableBytes
        droppedByteCount += sound.readableBytes - part.readableBytes
        if part.readableBytes > 0 { actions.append(.sound(part)) }
    }

    /// The device sends no more sound of the sentence.
    package mutating func soundEnded(_ actions: inout [Action]) {
        if waiting.contains(where: \.isSpoken) { return early.isEnded = true }
        guard hearing?.isStopped == false else { return }
        hearing?.isStopped = true
        actions.append(.silence)
    }

    /// The device withdraws the sentence.
    package mutating func soundCancelled(_ actions: inout [Action]) {
        dropWaitingSentence(&actions)
        guard let withdrawn = withdraw(&actions) else { return }
        ask(.stop, .nothing, &actions)
        actions.append(.send(EVSResponses(to: withdrawn.content.id, [])))
    }

    /// The first sound of a sentence has its position in the channel.
    package mutating func began(_ number: Int, at position: FramePosition, _ actions: inout [Action]) {
        guard let hearing, hearing.number == number, hearing.call == nil else { return }
        ask(
            .listen(id: hearing.request.sentence, position, context: hearing.request.content.contextText),
            .request(hearing.request), &actions)
        self.hearing?.call = lastCall
    }

    /// The microphone's channel is not open any more.
    package mutating func microphoneFailed(_ error: ApusError, _ actions: inout [Action]) {
        guard let failed = withdraw(&actions) else { return }
        fail(failed, error, &actions)
    }

    /// A sentence with this id was heard, and is being carried out.
    package mutating func heard(_ sentence: String, _ text: String, _ actions: inout [Action]) {
        guard let hearing, hearing.request.sentence.isExactly(sentence), !hearing.isReported else { return }
        self.hearing?.isReported = true
        self.hearing?.isStopped = true
        let items = Self.report(text, of: hearing)
        if !items.isEmpty {
            actions.append(.send(EVSResponses(to: hearing.request.content.id, trace: sentence, isLast: false, items)))
        }
        actions.append(.silence)
    }

    /// What was heard, and that the device is to stop.
    private static func report(_ text: String, of hearing: Hearing) -> [EVSResponses.Item] {
        var items: [EVSResponses.Item] = []
        if !text.isEmpty {
            items.append(.init(EVSName.intermediateText, ["text": .string(text), "is_last": .bool(true)]))
        }
        if hearing.isEndFound, !hearing.isStopped { items.append(.init(EVSName.stopCapture)) }
        return items
    }

    private mutating func begin(_ request: Request, _ actions: inout [Action]) {
        let payload = request.content.payload
        if let format = payload["format"]?.string, !format.isExactly(EVSName.format) {
            return fail(request, ApusError(.badParameter, "the format is \(EVSName.format) only"), &actions)
        }
        if payload["profile"]?.string?.isExactly("EVALUATE") == true {
            return fail(request, ApusError(.notImplemented, "pronunciations are not judged"), &actions)
        }
        if let earlier = withdraw(&actions) { actions.append(.send(EVSResponses(to: earlier.content.id, []))) }
        if lastHearing == 0 { ask(.follow(topic: "dialogs/\(device)"), .nothing, &actions) }
        lastHearing += 1
        let isEndFound = payload["enable_vad"] != .bool(false)
        hearing = Hearing(number: lastHearing, request: request, isEndFound: isEndFound)
        actions.append(.begin(lastHearing))
        let (sound, isEnded) = early
        early = (ByteBuffer(), false)
        received(sound: sound, &actions)
        if isEnded { soundEnded(&actions) }
    }

    private mutating func dropWaitingSentence(_ actions: inout [Action]) {
        for request in waiting where request.isSpoken {
            actions.append(.send(EVSResponses(to: request.content.id, [])))
        }
        waiting.removeAll(where: \.isSpoken)
    }

    /// Ends the sentence that the device speaks.
    ///
    /// - Returns: its request, which is to be answered.
    private mutating func withdraw(_ actions: inout [Action]) -> Request? {
        guard let hearing else { return nil }
        self.hearing = nil
        if let call = hearing.call {
            pending[call] = nil
            actions.append(.cancel(call))
        }
        actions.append(.end)
        return hearing.request
    }

    /// The sentence was carried out, or could not be heard.
    ///
    /// - Returns: it; nil if the call was another one.
    private mutating func finish(_ call: UInt32, _ actions: inout [Action]) -> Hearing? {
        guard let hearing, hearing.call == call else { return nil }
        self.hearing = nil
        actions.append(.end)
        return hearing
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
        case .audioIn: begin(request, &actions)
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

    /// - Parameter hearing: the sentence that was spoken; nil: it was typed.
    private mutating func reply(
        _ answer: Answer, to request: Request, _ hearing: Hearing?, _ actions: inout [Action]
    ) {
        var items: [EVSResponses.Item] = []
        var trace = ""
        switch answer {
        case .failed(let error): return fail(request, error, &actions)
        case .done: break
        case .turn(let turn): (items, trace) = (Self.items(turn, address: nil), turn.id)
        case .heard(let heard):
            if let hearing, !hearing.isReported { items += Self.report(heard.text, of: hearing) }
            if let turn = heard.turn { items += Self.items(turn, address: heard.address) }
            trace = heard.turn?.id ?? ""
        }
        actions.append(.send(EVSResponses(to: request.content.id, trace: trace, items)))
    }

    /// - Parameter address: of the spoken reply.
    private static func items(_ turn: Turn, address: String?) -> [EVSResponses.Item] {
        var items: [EVSResponses.Item] = []
        if !turn.reply.isEmpty {
            let isSecure = address?.hasPrefix("https:") == true
            items.append(
                .init(
                    EVSName.audioOut,
                    [
                        "type": .string("TTS"), "behavior": .string("IMMEDIATELY"), "resource_id": .string(turn.id),
                        "url": address.map { .string($0) },
                        "secure_url": isSecure ? address.map { .string($0) } : nil,
                        "metadata": .object([.init(name: "text", value: .string(turn.reply))]),
                    ]))
        }
        if turn.asks {
            items.append(
                .init(
                    EVSName.expectReply, ["reply_key": .string(turn.id), "timeout": .number("\(replyTimeout)")]))
        }
        return items
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
                "number": .number("\(error.code.number)"),
            ])
    }
}
