import ApusClientAPI
import ApusContract
import ApusCore
import ApusCrypto
import ApusMedia
import ApusSessions
import CoreMetrics
import Foundation
import NIOCore
import NIOHTTP1
import SwiftProtobuf

/// The dialect of `/v1/evs`: the protocol of embedded voice devices (docs/evs.md). The shell of
/// ``EVSConnectionStateMachine``: it reads texts, and asks the cluster on the word of the device's session.
///
/// Concurrency model: as ``WebSocketDialect``.
final class EVSDialect: WebSocketDialect {
    /// Of the upgrade; nil: it had none.
    private let token: String?
    /// The beginning of the addresses of replies; nil: the upgrade had no host.
    private let base: String?
    /// Nil: this node has no media.
    private let media: HTTPMedia?
    private let replies: EVSReplies
    private var machine: EVSConnectionStateMachine
    private var sound: EVSSound?

    private static let refused = Counter(label: "apus_evs_requests_refused_total")
    private static let dropped = Counter(label: "apus_evs_sound_dropped_bytes_total")

    /// How long a sentence may take: one that was typed, and one that is spoken.
    private static let sentenceTime = (typed: Duration.seconds(20), spoken: Duration.seconds(40))
    private static let hostByteCountMax = 255

    /// - Parameters:
    ///   - head: of the upgrade. The token is in the header `Authorization`, or in the query, as the vendor's devices
    ///     have it.
    ///   - isSecure: the connection has TLS.
    init(_ head: HTTPRequestHead, isSecure: Bool, media: HTTPMedia?, replies: EVSReplies, _ limits: EVSLimits) {
        var bounds = EVSConnectionStateMachine.Limits()
        (bounds.waitingMax, bounds.requestsMax) = (limits.requestsMax, limits.requestsMax)
        machine = EVSConnectionStateMachine(limits: bounds)
        let query = head.uri.split(separator: "?", maxSplits: 1).dropFirst().first.map { Array($0.utf8) } ?? []
        token = head.headers["authorization"].first.map(EVSRequest.token) ?? (try? FormFields(query))?["token"]
        base = head.headers["host"].first.flatMap { Self.isHost($0) ? (isSecure ? "https://" : "http://") + $0 : nil }
        (self.media, self.replies) = (media, replies)
    }

    /// True for what may stand in an address (RFC 3986 §3.2.2).
    private static func isHost(_ text: String) -> Bool {
        (1...hostByteCountMax).contains(text.utf8.count)
            && text.utf8.allSatisfy { byte in
                let scalar = Unicode.Scalar(byte)
                return scalar.properties.isAlphabetic && scalar.isASCII
                    || "0123456789.-_:[]".unicodeScalars.contains(scalar)
            }
    }

    // MARK: - The connection

    func connected(_ connection: WebSocketConnection) {
        change(connection) { $0.connected(token: token, &$1) }
    }

    func received(_ text: ByteBuffer, on connection: WebSocketConnection) {
        do throws(ApusError) {
            switch try EVSText(Array(text.readableBytesView)) {
            case .request(let request):
                let sentence = Self.sentence(request.id)
                change(connection) { $0.received(request, sentence: sentence, &$1) }
            case .soundEnded: change(connection) { $0.soundEnded(&$1) }
            case .soundCancelled: change(connection) { $0.soundCancelled(&$1) }
            }
        } catch {
            change(connection) { $0.receivedWrong(error, &$1) }
        }
    }

    func received(binary bytes: ByteBuffer, on connection: WebSocketConnection) {
        change(connection) { $0.received(sound: bytes, &$1) }
    }

    func opened(_ session: Session, _ welcome: ClientWelcome, on connection: WebSocketConnection) throws(ApusError) {
        guard let device = session.device else { throw ApusError(.notAllowed, "the token is not one of a device") }
        change(connection) {
            $0.opened(as: device.rawValue, at: .now(), seconds: connection.wallSeconds(), &$1)
        }
    }

    func answered(_ id: UInt32, _ result: Result<ByteBuffer, ApusError>, on connection: WebSocketConnection) {
        let answer: EVSConnectionStateMachine.Answer
        switch result {
        case .failure(let error): answer = .failed(error)
        case .success(let bytes): answer = asked.removeValue(forKey: id)?(bytes) ?? .done
        }
        asked[id] = nil
        change(connection) { $0.answered(id, answer, &$1) }
    }

    func received(_ event: ClientEventFrame, on connection: WebSocketConnection) {
        if event.type == ClientDialogChanged.info.number {
            guard let change = try? ClientDialogChanged(serializedBytes: event.message),
                change.phases.contains(.thinking)
            else { return }
            return self.change(connection) { $0.heard(change.turn.id, change.turn.text, &$1) }
        }
        guard event.type == ClientCommandDelivery.info.number,
            let delivery = try? ClientCommandDelivery(serializedBytes: event.message)
        else { return }
        var directive: (namespace: String, name: String, payload: JSONValue)?
        if delivery.path.isExactly("Action.\(ClientDialogDirective.action)"),
            let read = try? ClientDialogDirective(json: delivery.json)
        {
            directive = (read.namespace, read.name, JSONValue(ArraySlice(read.payload.utf8)) ?? .object([]))
        }
        change(connection) {
            $0.received(command: delivery.id, isAction: !delivery.path.isEmpty, directive: directive, &$1)
        }
    }

    func becameWritable() {}

    /// EVS has no message for it. The device connects again when the socket is closed.
    func leave(for endpoints: [String], on connection: WebSocketConnection) {}

    func looked(at now: MonotonicTime, on connection: WebSocketConnection) {
        change(connection) { $0.tick(at: now, seconds: connection.wallSeconds(), &$1) }
    }

    func goodbye(_ error: ApusError) -> String {
        EVSResponses([EVSConnectionStateMachine.item(error)]).text
    }

    func confirmed() { sound?.sessionConfirmed() }

    func closed() {
        machine.closed()
        sound?.closed()
        (asked, sound) = ([:], nil)
    }

    // MARK: - Actions

    /// What the answers to requests that are open mean.
    private var asked: [UInt32: (ByteBuffer) -> EVSConnectionStateMachine.Answer] = [:]

    private func change(
        _ connection: WebSocketConnection,
        _ body: (inout EVSConnectionStateMachine, inout [EVSConnectionStateMachine.Action]) -> Void
    ) {
        var actions: [EVSConnectionStateMachine.Action] = []
        let (refused, dropped) = (machine.refusedCount, machine.droppedByteCount)
        body(&machine, &actions)
        if machine.refusedCount > refused { Self.refused.increment(by: machine.refusedCount - refused) }
        if machine.droppedByteCount > dropped { Self.dropped.increment(by: machine.droppedByteCount - dropped) }
        for action in actions {
            switch action {
            case .signIn(let token):
                connection.open(
                    .with {
                        ($0.version, $0.versionMin, $0.role) = (1, 1, .device)
                        ($0.token, $0.agent, $0.instance) = (token, "evs", .random(in: 1 ... .max))
                    })
            case .ask(let id, let call): ask(id, call, connection)
            case .cancel(let id):
                asked[id] = nil
                connection.cancel(id)
            case .begin(let sentence): begin(sentence, connection)
            case .sound(let bytes): sound?.add(bytes)
            case .silence: sound?.addSilence()
            case .end: sound?.end()
            case .send(let responses): connection.write(responses.text)
            case .close(let error): connection.close(error)
            }
        }
    }

    private func begin(_ sentence: Int, _ connection: WebSocketConnection) {
        guard case .open(let session) = connection.state, let device = session.device, let media else {
            return change(connection) { $0.microphoneFailed(ApusError(.unavailable, "this node has no media"), &$1) }
        }
        if sound == nil {
            let bound = NIOLoopBound(self, eventLoop: connection.eventLoop)
            let streams = EVSStreams(
                media.access, session, of: device, on: media.group.next(), isConfirmed: connection.isConfirmed,
                spawn: { connection.spawn($0) },
                onBegin: { sentence, position in
                    connection.eventLoop.execute {
                        bound.value.change(connection) { $0.began(sentence, at: position, &$1) }
                    }
                },
                onFailure: { error in
                    connection.eventLoop.execute {
                        bound.value.change(connection) { $0.microphoneFailed(error, &$1) }
                    }
                })
            // Until the connection is closed, the two refer to each other.
            sound = EVSSound(streams, replies: replies, of: session.account)
        }
        sound?.begin(sentence)
    }

    private func ask(_ id: UInt32, _ call: EVSConnectionStateMachine.Call, _ connection: WebSocketConnection) {
        guard case .open(let session) = connection.state, let device = session.device?.rawValue else { return }
        do throws(ApusError) {
            switch call {
            case .follow(let topic):
                try send(id, ClientSubscribeRequest.with { $0.topic = topic }, session, connection)
            case .stop:
                try send(id, ClientStopDialogRequest.with { $0.device = device }, session, connection)
            case .listen(let sentence, let position, let context):
                let request = ClientListenRequest.with {
                    ($0.id, $0.context) = (sentence, context)
                    ($0.epoch, $0.sequence) = (position.epoch, position.sequence)
                }
                asked[id] = { [weak self] bytes in
                    guard let response = try? ClientListenResponse(serializedBytes: Array(bytes.readableBytesView))
                    else { return .failed(ApusError(.internalFailure)) }
                    return .heard(self?.heard(response) ?? .init(text: response.heard, turn: nil, address: nil))
                }
                try send(id, request, session, connection, time: Self.sentenceTime.spoken)
            case .synchronize(let context):
                try send(id, ClientSynchronizeDialogRequest.with { $0.context = context }, session, connection)
            case .say(let sentence, let text, let context):
                let request = ClientSayRequest.with {
                    ($0.id, $0.device, $0.text, $0.context) = (sentence, device, text, context)
                }
                asked[id] = { bytes in
                    guard let turn = try? ClientDialogTurn(serializedBytes: Array(bytes.readableBytesView)) else {
                        return .failed(ApusError(.internalFailure))
                    }
                    return .turn(.init(turn))
                }
                try send(id, request, session, connection, time: Self.sentenceTime.typed)
            case .event(let event, let payload, let context):
                let request = ClientSendDialogEventRequest.with {
                    ($0.id, $0.name, $0.payload, $0.context) = (event, "Custom", payload, context)
                }
                try send(id, request, session, connection)
            case .spoken(let sentence):
                let request = ClientSpokenDialogRequest.with { ($0.id, $0.device) = (sentence, device) }
                try send(id, request, session, connection)
            case .answer(let command, let code):
                let request = ClientAnswerCommandRequest.with {
                    ($0.id, $0.json) = (command, code == nil ? "{}" : "")
                    if let code { ($0.code, $0.message) = (code.number, code.summary) }
                }
                try send(id, request, session, connection)
            }
        } catch {
            answered(id, .failure(error), on: connection)
        }
    }

    private func heard(_ response: ClientListenResponse) -> EVSConnectionStateMachine.Heard {
        var address: String?
        if response.replyMs > 0, let base, let sound {
            address = base + sound.address(milliseconds: Int(response.replyMs))
        }
        return .init(
            text: response.heard, turn: response.turn.id.isEmpty ? nil : .init(response.turn), address: address)
    }

    private func send<M: ClientRequestMessage>(
        _ id: UInt32, _ message: M, _ session: Session, _ connection: WebSocketConnection, time: Duration? = nil
    ) throws(ApusError) {
        guard let bytes: [UInt8] = try? message.serializedBytes() else { throw ApusError(.internalFailure) }
        try connection.ask(id, M.info.name, ByteBuffer(bytes: bytes), .binary, of: session, time: time)
    }

    /// The id of the sentence or the event of a request: a repetition has the same, and is carried out once.
    private static func sentence(_ request: String) -> String {
        guard !request.isEmpty else {
            return Hexadecimal.text((0..<16).map { _ in UInt8.random(in: .min ... .max) })
        }
        return Hexadecimal.text(SHA256.hash(data: Array("evs \(request)".utf8)).prefix(16))
    }
}

extension EVSConnectionStateMachine.Turn {
    fileprivate init(_ turn: ClientDialogTurn) {
        self.init(id: turn.id, reply: turn.reply, asks: turn.outcome == .asked)
    }
}
