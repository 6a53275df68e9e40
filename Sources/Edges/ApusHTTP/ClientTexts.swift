import ApusClientAPI
import ApusContract
import ApusCore
import ApusSessions
import Foundation
import NIOCore
import SwiftProtobuf

/// The dialect of `/v1/ws`: requests and events in JSON texts (D17), which `docs/reference/asyncapi.json` describes.
///
/// Concurrency model: as ``WebSocketDialect``.
final class ClientTexts: WebSocketDialect {
    private struct Fields {
        private let values: [(name: String, value: String)]

        init(_ bytes: [UInt8]) throws(ApusError) { values = try JSONFields.of(bytes) }

        func raw(_ name: String) -> String? {
            values.first { $0.name == name }?.value.trimmingCharacters(in: .whitespaces)
        }

        /// A string without escapes.
        func text(_ name: String) -> String? {
            guard let raw = raw(name), raw.count >= 2, raw.hasPrefix("\""), raw.hasSuffix("\""), !raw.contains("\\")
            else { return nil }
            return String(raw.dropFirst().dropLast())
        }

        func number(_ name: String) -> UInt32? { raw(name).flatMap { UInt32($0) } }
    }

    private let media: HTTPMedia?
    /// Nil if this node has no media.
    private let place: WebSocketPlace?
    private let browser: BrowserUpgrade
    /// Nil before the session is open, and without media.
    private var streams: WebSocketStreams?

    /// - Parameters:
    ///   - place: on an event loop of the channels.
    ///   - browser: what the upgrade says about its page.
    init(media: HTTPMedia?, at place: WebSocketPlace?, browser: BrowserUpgrade) {
        (self.media, self.place, self.browser) = (media, place, browser)
    }

    func connected(_ connection: WebSocketConnection) {}

    func received(_ text: ByteBuffer, on connection: WebSocketConnection) throws(ApusError) {
        let fields = try Fields(Array(text.readableBytesView))
        switch connection.state {
        case .awaitingHello: try open(fields, connection)
        case .opening: throw ApusError(.malformed, "nothing may follow the hello before the welcome")
        case .open(let session): try serve(fields, session, connection)
        case .closed: break
        }
    }

    func received(binary bytes: ByteBuffer, on connection: WebSocketConnection) throws(ApusError) {
        guard let streams else { throw ApusError(.malformed, "only text frames are supported") }
        try streams.received(bytes)
    }

    private func open(_ fields: Fields, _ connection: WebSocketConnection) throws(ApusError) {
        guard let text = fields.raw("hello"), let read = try? ClientHello(jsonString: text) else {
            throw ApusError(.malformed, "the first text must be a hello")
        }
        if read.token.isEmpty, read.ticket.isEmpty, let cookie = try browser.cookieOfPage() {
            return connection.open(signedIn: cookie, instance: read.instance)
        }
        connection.open(
            .with {
                ($0.version, $0.versionMin, $0.role, $0.agent) = (1, 1, read.role, read.agent)
                ($0.token, $0.ticket, $0.instance) = (read.token, read.ticket, read.instance)
            })
    }

    func opened(_ session: Session, _ welcome: ClientWelcome, on connection: WebSocketConnection) {
        if let media, let place {
            streams = WebSocketStreams(
                media, session, on: connection, place,
                answer: { [weak self, weak connection] in
                    if let self, let connection { answered($0, $1, on: connection) }
                })
        }
        if let text = try? welcome.jsonString(options: clientJSON) { connection.write("{\"welcome\":\(text)}") }
    }

    private func serve(
        _ fields: Fields, _ session: Session, _ connection: WebSocketConnection
    ) throws(ApusError) {
        if let id = fields.number("cancel") { return connection.cancel(id) }
        guard let id = fields.number("id") else { throw ApusError(.malformed, "a request needs a number as its id") }
        do throws(ApusError) {
            guard let name = fields.text("request") else { throw ApusError(.malformed, "the request has no name") }
            if name.hasPrefix("streams.") {
                guard let request = WebSocketStreams.Request(rawValue: name) else { throw ApusError(.methodUnknown) }
                guard let streams else { throw ApusError(.unavailable, "this node has no media") }
                return try streams.serve(request, id, fields.raw("body") ?? "")
            }
            try connection.ask(
                id, name, ByteBuffer(string: fields.raw("body") ?? ""), .json, of: session,
                time: fields.number("timeoutMs").map { .milliseconds(Int64($0)) },
                trace: fields.text("traceparent").flatMap { TraceContext(traceparent: $0) })
        } catch {
            answered(id, .failure(error), on: connection)
        }
    }

    func answered(_ id: UInt32, _ result: Result<ByteBuffer, ApusError>, on connection: WebSocketConnection) {
        switch result {
        case .success(let body):
            var text = ByteBuffer(string: "{\"id\":\(id),\"response\":")
            text.writeImmutableBuffer(body)
            text.writeString("}")
            connection.write(text)
        case .failure(let error): connection.write("{\"id\":\(id),\"error\":\(Problem(error).json.text)}")
        }
    }

    func received(_ event: ClientEventFrame, on connection: WebSocketConnection) {
        connection.write(event.json(connection.kind(of: event)))
    }

    func looked(at now: MonotonicTime, on connection: WebSocketConnection) {}

    func goodbye(_ error: ApusError) -> String { "{\"goodbye\":\(Problem(error).json.text)}" }

    func becameWritable() { streams?.becameWritable() }

    func leave(for endpoints: [String], on connection: WebSocketConnection) {
        let message = ClientEndpointsChanged.with { ($0.endpoints, $0.leaving) = (endpoints, true) }
        guard let text = try? message.jsonString(options: clientJSON) else { return }
        connection.write("{\"endpointsChanged\":\(text)}")
    }

    func confirmed() { streams?.sessionConfirmed() }

    func closed() {
        streams?.closed()
        streams = nil
    }
}
