import ApusClientAPI
import ApusContract
import ApusCore
import ApusSessions
import Foundation
import HTTPTypes
import Hummingbird
import NIOCore

/// The services' requests over REST (D17). Path and query become the request's message in protobuf's JSON encoding, and
/// errors become problem details (RFC 9457).
/// Isolation: immutable; called on the cooperative pool, once per request.
struct RESTResponder: Sendable {
    /// A path pattern and its request.
    private struct Route: Sendable {
        let operation: ClientOperation
        let rule: HTTPRule
        /// By proto name and by JSON name.
        let fields: [String: ProtoField]
    }

    private let clients: HTTPClients
    private let configuration: HTTPConfiguration
    private let metrics: RequestMetrics
    private let running: RunningRequests
    private let schemas: ProtoSchemas
    /// By the number of path segments.
    private let routes: [Int: [Route]]
    /// The depth of messages in messages that is looked at; no request has more.
    private static let depthMax = 4

    init(_ clients: HTTPClients, configuration: HTTPConfiguration, metrics: RequestMetrics) {
        (self.clients, self.configuration, self.metrics) = (clients, configuration, metrics)
        running = RunningRequests(connectionsMax: configuration.connectionsMax)
        schemas = ProtoSchemas(clients.services.api.schemas)
        var routes: [Int: [Route]] = [:]
        for operation in clients.services.api.operations {
            for rule in [operation.info.path, operation.info.alias].compactMap({ $0 }) {
                let route = Route(
                    operation: operation, rule: rule, fields: schemas.fields(of: operation.inputName))
                routes[rule.parts.count, default: []].append(route)
            }
        }
        self.routes = routes
    }

    /// Nil if no request has this path.
    func respond(_ request: Request, _ context: HTTPContext) async -> Response? {
        let start = MonotonicTime.now()
        guard let (response, path) = await answer(request, context) else { return nil }
        metrics.count(path, response.status.code, since: start)
        return response
    }

    /// The answer, with the pattern of its path.
    private func answer(_ request: Request, _ context: HTTPContext) async -> (Response, path: String)? {
        let parts = request.uri.path.split(separator: "/")
        let matching = routes[parts.count]?.filter { Self.matches($0.rule.parts, parts) } ?? []
        guard !matching.isEmpty else { return nil }
        guard let route = matching.first(where: { $0.rule.method.rawValue == request.method.rawValue }) else {
            var response = Problem(ApusError(.methodUnknown, "the path has no such method"), .methodNotAllowed).response
            response.headers[.allow] = matching.map(\.rule.method.rawValue).joined(separator: ", ")
            return (response, matching[0].rule.path)
        }
        let result: Result<ByteBuffer, ApusError>
        do throws(ApusError) {
            result = try await carryOut(route, parts, request, context)
        } catch {
            result = .failure(error)
        }
        switch result {
        case .success(let body):
            let response = Response(
                status: .ok, headers: [.contentType: "application/json", .cacheControl: "no-store"],
                body: ResponseBody(byteBuffer: body))
            return (response, route.rule.path)
        case .failure(let error): return (Problem(error).response, route.rule.path)
        }
    }

    private static func matches(_ pattern: [HTTPRule.Part], _ parts: [Substring]) -> Bool {
        for (expected, part) in zip(pattern, parts) {
            if case .literal(let text) = expected, text != part { return false }
        }
        return true
    }

    private func carryOut(
        _ route: Route, _ parts: [Substring], _ request: Request, _ context: HTTPContext
    ) async throws(ApusError) -> Result<ByteBuffer, ApusError> {
        let session = try authorized(request, context, route.operation.info.roles)
        let services = clients.services
        try services.quotas.take(route.operation.info, of: session.account)
        // The owner of a device ends its sessions, and this request has none.
        try await clients.sessions?.checkDevice(session)
        let target = try Self.target(route, parts)
        let message = try await message(route, target, request)
        let work = try route.operation.read(message, .json)
        let call = ClientCall(
            session: session, deadline: services.deadline(asked: Self.wait(request)),
            request: try IdempotencyKey(request.headers)?.request(
                of: session, route.operation.info, target: target, message: message),
            trace: services.tracer == nil ? nil : Self.trace(request), topics: services.api.topics)
        guard let departure = context.departure else { throw ApusError(.cancelled) }
        try running.take(session)
        defer { running.giveBack(session) }
        return await departure.cancelling { await services.carryOut(route.operation, work, call) }
    }

    /// The session of the bearer, or of the browser that has signed in. Throws 12001, 12002, and 12004 if the token
    /// crossed a network in plain text, or the browser's cookie does not count.
    private func authorized(
        _ request: Request, _ context: HTTPContext, _ roles: ClientRoles
    ) throws(ApusError) -> Session {
        try configuration.checkSecrets(context)
        if let token = BearerToken.of(request.headers) { return try clients.session(token) }
        var session = try clients.browser(request, context, configuration)
        // An operator may have a token of each account, and so may its browser.
        if session.role == .admin, !roles.contains(.admin), roles.contains(.app) { session.role = .app }
        return session
    }

    /// The client's time-out: `Prefer: wait=SECONDS` (RFC 7240 §4.3).
    private static func wait(_ request: Request) -> Duration? {
        guard let text = request.headers[.prefer], let range = text.range(of: "wait="),
            let seconds = Int64(text[range.upperBound...].prefix { $0.isNumber }), (1...3600).contains(seconds)
        else { return nil }
        return .seconds(seconds)
    }

    /// `traceparent`; nil if it is missing or not valid: then the trace begins here (W3C Trace Context).
    private static func trace(_ request: Request) -> TraceContext? {
        request.headers[.traceparent].flatMap { TraceContext(traceparent: $0) }
    }

    // MARK: - Messages

    /// The fields of the path, in its order. Throws 21031 if one is not UTF-8.
    private static func target(
        _ route: Route, _ parts: [Substring]
    ) throws(ApusError) -> [(name: String, value: String)] {
        var target: [(name: String, value: String)] = []
        for (pattern, part) in zip(route.rule.parts, parts) {
            guard case .field(let name) = pattern else { continue }
            let plain = part.utf8.contains(UInt8(ascii: "%")) ? part.removingPercentEncoding : String(part)
            guard let text = plain, !text.isEmpty else {
                throw ApusError(.badParameter, "\(name) in the path is not UTF-8")
            }
            target.append((name, text))
        }
        return target
    }

    /// The request's message in JSON.
    private func message(
        _ route: Route, _ target: [(name: String, value: String)], _ request: Request
    ) async throws(ApusError) -> ByteBuffer {
        var given: [(String, JSON)] = []
        for (name, text) in target { given.append((name, try value([text], route.fields[name], name))) }
        guard route.rule.method.takesBody else {
            return ByteBuffer(string: JSON.object(try query(request, route) + given).text)
        }
        let body = try await self.body(request)
        let fields = try body.readableBytes > 0 ? JSONFields.of(Array(body.readableBytesView)) : []
        try check(fields, route.fields)
        return given.isEmpty ? body : try Self.merged(fields, given)
    }

    /// Refuses values of other types than the documents have, also in the messages of a request.
    private func check(
        _ values: [(name: String, value: String)], _ fields: [String: ProtoField], depth: Int = 0
    ) throws(ApusError) {
        for (name, value) in values {
            guard let field = fields[name] else { continue }
            guard field.accepts(value) else {
                throw ApusError(.malformed, "\(name) has another type; leave out what would be null")
            }
            guard let message = field.messageName, depth < Self.depthMax else { continue }
            let inner = schemas.fields(of: message)
            for item in field.isRepeated ? try JSONFields.items(Array(value.utf8)) : [value] {
                try check(try JSONFields.of(Array(item.utf8)), inner, depth: depth + 1)
            }
        }
    }

    private func query(_ request: Request, _ route: Route) throws(ApusError) -> [(String, JSON)] {
        let parameters = request.uri.queryParameters
        var values: [(String, JSON)] = []
        for key in Set(parameters.map(\.key)).sorted() {
            let name = String(key)
            guard let field = route.fields[name], !route.rule.fields.contains(field.name) else {
                throw ApusError(
                    .badParameter, "there is no parameter \(UntrustedText.escaped(String(name.prefix(64))))")
            }
            values.append((name, try value(parameters.getAll(name).map { String($0) }, field, name)))
        }
        return values
    }

    private func value(_ texts: [String], _ field: ProtoField?, _ name: String) throws(ApusError) -> JSON {
        let one: (String) throws(ApusError) -> JSON = { text throws(ApusError) in
            guard field?.isBool ?? false else { return .string(text) }
            guard text == "true" || text == "false" else {
                throw ApusError(.badParameter, "\(name) is neither true nor false")
            }
            return .bool(text == "true")
        }
        guard field?.isRepeated ?? false else {
            guard texts.count == 1 else { throw ApusError(.badParameter, "\(name) may be given only once") }
            return try one(texts[0])
        }
        var items: [JSON] = []
        for text in texts { items.append(try one(text)) }
        return .array(items)
    }

    /// Throws 10001 if the body's type is not JSON, 10002 if it is too long.
    private func body(_ request: Request) async throws(ApusError) -> ByteBuffer {
        let buffer: ByteBuffer
        do {
            buffer = try await request.body.collect(upTo: configuration.bodyByteCountMax)
        } catch {
            throw ApusError(.frameTooLarge)
        }
        guard buffer.readableBytes > 0 else { return buffer }
        let type = request.headers[.contentType]?.split(separator: ";").first.map { $0.lowercased() } ?? ""
        guard type == "application/json" else {
            throw ApusError(.malformed, "the body's Content-Type must be application/json")
        }
        return buffer
    }

    /// Adds the fields of the path to those of the body, which must not contain them.
    private static func merged(
        _ fields: [(name: String, value: String)], _ given: [(String, JSON)]
    ) throws(ApusError) -> ByteBuffer {
        for (name, _) in fields where given.contains(where: { $0.0 == name }) {
            throw ApusError(.badParameter, "\(name) is already in the path")
        }
        return ByteBuffer(string: JSON.object(fields.map { ($0.name, .raw($0.value)) } + given).text)
    }
}
