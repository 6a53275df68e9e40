package import ApusCore

/// A text of an EVS device: a request with its header and the device's context, or one of two bare words about the
/// sound that it sends (docs/evs.md).
///
/// Pure value.
package enum EVSText: Equatable, Sendable {
    case request(EVSRequest)
    /// `__END__`: the device sends no more sound of the sentence.
    case soundEnded
    /// `__CANCEL__`: the sentence is withdrawn.
    case soundCancelled

    /// - Throws: 10002 if the text or a part of it is too long, 10001 if it is no request.
    package init(_ text: [UInt8]) throws(ApusError) {
        guard text.count <= EVSRequest.byteCountMax else {
            throw ApusError(.frameTooLarge, "a request has at most \(EVSRequest.byteCountMax) bytes")
        }
        if text.elementsEqual("__END__".utf8) {
            self = .soundEnded
        } else if text.elementsEqual("__CANCEL__".utf8) {
            self = .soundCancelled
        } else {
            self = .request(try EVSRequest(text))
        }
    }
}

/// A request of an EVS device: `{"iflyos_header":…,"iflyos_context":…,"iflyos_request":{"header":…,"payload":…}}`.
///
/// Pure value.
package struct EVSRequest: Equatable, Sendable {
    /// The longest text, in bytes.
    package static let byteCountMax = 32 << 10
    /// The longest id, in bytes.
    package static let idByteCountMax = 128
    /// The deepest nesting.
    package static let depthMax = 16

    /// The token, without `Bearer`.
    package var token: String?
    /// The device that it is said to come from.
    package var device: String?
    /// What the device shows and plays, by module.
    package var context: [JSONValue.Member]
    /// Such as `recognizer.text_in`.
    package var name: String
    /// Chosen by the device; empty: none.
    package var id: String
    package var payload: JSONValue

    package init(
        name: String, id: String = "", payload: JSONValue = .object([]), context: [JSONValue.Member] = [],
        token: String? = nil, device: String? = nil
    ) {
        (self.name, self.id, self.payload, self.context) = (name, id, payload, context)
        (self.token, self.device) = (token, device)
    }

    init(_ text: [UInt8]) throws(ApusError) {
        guard let value = JSONValue(text[...], depthMax: Self.depthMax), case .object = value else {
            throw ApusError(.malformed, "the text is not a JSON object")
        }
        guard let request = value["iflyos_request"], let name = request["header"]?["name"]?.string else {
            throw ApusError(.malformed, "there is no iflyos_request with a header and a name in it")
        }
        guard name.utf8.count <= Self.idByteCountMax else { throw ApusError(.frameTooLarge, "a name is too long") }
        self.init(name: name)
        if let id = request["header"]?["request_id"]?.string {
            guard id.utf8.count <= Self.idByteCountMax else {
                throw ApusError(.frameTooLarge, "a request_id has at most \(Self.idByteCountMax) bytes")
            }
            self.id = id
        }
        if case .object = request["payload"] { payload = request["payload"] ?? payload }
        if case .object(let members) = value["iflyos_context"] { context = members }
        token = value["iflyos_header"]?["authorization"]?.string.map(Self.token)
        device = value["iflyos_header"]?["device"]?["device_id"]?.string
    }

    /// A token without the scheme before it, in whatever case.
    package static func token(_ authorization: String) -> String {
        let scheme = "bearer "
        guard authorization.count > scheme.count, authorization.prefix(scheme.count).lowercased().isExactly(scheme)
        else { return authorization }
        return String(authorization.dropFirst(scheme.count))
    }

    /// The context as the cluster takes it (VA-12): an array of a header and a payload for each module. Empty: none.
    package var contextText: String {
        guard !context.isEmpty else { return "" }
        let parts = context.map { module in
            var payload = module.value
            if case .object = payload {} else { payload = .object([.init(name: "value", value: payload)]) }
            let header: [JSONValue.Member] = [
                .init(name: "namespace", value: .string(module.name)), .init(name: "name", value: .string("State")),
            ]
            return JSONValue.object([
                .init(name: "header", value: .object(header)), .init(name: "payload", value: payload),
            ])
        }
        return JSONValue.array(parts).text
    }
}

/// What a node sends to an EVS device: `{"iflyos_meta":…,"iflyos_responses":[…]}`.
///
/// Pure value.
package struct EVSResponses: Equatable, Sendable {
    package struct Item: Equatable, Sendable {
        package var name: String
        package var payload: JSONValue

        package init(_ name: String, _ payload: JSONValue = .object([])) {
            (self.name, self.payload) = (name, payload)
        }

        /// With the members whose value is not nil.
        package init(_ name: String, _ members: KeyValuePairs<String, JSONValue?>) {
            self.init(
                name, .object(members.compactMap { pair in pair.value.map { .init(name: pair.key, value: $0) } }))
        }
    }

    /// The request that it answers; empty: none, the node has sent it on its own.
    package var requestID: String
    /// The id of the sentence, for logs; empty: none.
    package var trace: String
    /// Nothing follows for the request.
    package var isLast: Bool
    package var items: [Item]

    package init(to requestID: String = "", trace: String = "", isLast: Bool = true, _ items: [Item]) {
        (self.requestID, self.trace, self.isLast, self.items) = (requestID, trace, isLast, items)
    }

    package var text: String {
        var meta: [(String, JSON)] = []
        if !trace.isEmpty { meta.append(("trace_id", .string(trace))) }
        if !requestID.isEmpty { meta.append(("request_id", .string(requestID))) }
        meta.append(("is_last", .bool(isLast)))
        let items = items.map { item in
            JSON.object([("header", .object([("name", .string(item.name))])), ("payload", .raw(item.payload.text))])
        }
        return JSON.object([("iflyos_meta", .object(meta)), ("iflyos_responses", .array(items))]).text
    }
}
