import ApusClientAPI
import ApusContract
import ApusCore
import ApusCrypto
import ApusSessions
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
    private var machine = EVSConnectionStateMachine()

    /// How long a sentence may take.
    private static let sentenceTime = Duration.seconds(20)

    /// - Parameter head: of the upgrade. The token is in the header `Authorization`, or in the query, as the vendor's
    ///   devices have it.
    init(_ head: HTTPRequestHead) {
        let query = head.uri.split(separator: "?", maxSplits: 1).dropFirst().first.map { Array($0.utf8) } ?? []
        token = head.headers["authorization"].first.map(EVSRequest.token) ?? (try? FormFields(query))?["token"]
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
            case .soundEnded, .soundCancelled: break
            }
        } catch {
            change(connection) { $0.receivedWrong(error, &$1) }
        }
    }

    func received(binary bytes: ByteBuffer, on connection: WebSocketConnection) {}

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

    func looked(at now: MonotonicTime, on connection: WebSocketConnection) {
        change(connection) { $0.tick(at: now, seconds: connection.wallSeconds(), &$1) }
    }

    func goodbye(_ error: ApusError) -> String {
        EVSResponses([EVSConnectionStateMachine.item(error)]).text
    }

    func closed() {
        machine.closed()
        asked = [:]
    }

    // MARK: - Actions

    /// What the answers to requests that are open mean.
    private var asked: [UInt32: (ByteBuffer) -> EVSConnectionStateMachine.Answer] = [:]

    private func change(
        _ connection: WebSocketConnection,
        _ body: (inout EVSConnectionStateMachine, inout [EVSConnectionStateMachine.Action]) -> Void
    ) {
        var actions: [EVSConnectionStateMachine.Action] = []
        body(&machine, &actions)
        for action in actions {
            switch action {
            case .signIn(let token):
                connection.open(
                    .with {
                        ($0.version, $0.versionMin, $0.role) = (1, 1, .device)
                        ($0.token, $0.agent, $0.instance) = (token, "evs", .random(in: 1 ... .max))
                    })
            case .ask(let id, let call): ask(id, call, connection)
            case .send(let responses): connection.write(responses.text)
            case .close(let error): connection.close(error)
            }
        }
    }

    private func ask(_ id: UInt32, _ call: EVSConnectionStateMachine.Call, _ connection: WebSocketConnection) {
        guard case .open(let session) = connection.state, let device = session.device?.rawValue else { return }
        do throws(ApusError) {
            switch call {
            case .follow:
                try send(id, ClientSubscribeRequest.with { $0.topic = "commands/own" }, session, connection)
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
                    return .turn(.init(id: turn.id, reply: turn.reply, asks: turn.outcome == .asked))
                }
                try send(id, request, session, connection, time: Self.sentenceTime)
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
