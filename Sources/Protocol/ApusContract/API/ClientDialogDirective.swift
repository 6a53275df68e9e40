public import ApusCore

/// What a device is to do for a dialog (VA-10). It reaches the device as the command ``action``: once, and in order.
///
/// Pure value.
public struct ClientDialogDirective: Sendable, Hashable {
    /// The name of the action of the device that takes directives.
    public static let action = "_directive"

    /// Such as `Calls`; `Custom` for those of integrators.
    public var namespace: String
    /// Such as `Start`.
    public var name: String
    /// 32 hexadecimal digits; a repetition has the same.
    public var messageID: String
    /// The id of the sentence that it follows from; empty: none.
    public var dialogRequestID: String
    /// A JSON object.
    public var payload: String

    public init(namespace: String, name: String, messageID: String, dialogRequestID: String, payload: String) {
        (self.namespace, self.name, self.messageID) = (namespace, name, messageID)
        (self.dialogRequestID, self.payload) = (dialogRequestID, payload)
    }

    /// Reads what a device receives.
    ///
    /// - Throws: 20102 if the JSON is not a directive.
    public init(json: String) throws(ApusError) {
        guard let value = JSONValue(ArraySlice(json.utf8))?["directive"], let header = value["header"],
            let namespace = header["namespace"]?.string, let name = header["name"]?.string,
            case .object? = value["payload"], let payload = value["payload"]?.text
        else { throw ApusError(.jsonInvalid, "the JSON is not a directive") }
        self.init(
            namespace: namespace, name: name, messageID: header["messageId"]?.string ?? "",
            dialogRequestID: header["dialogRequestId"]?.string ?? "", payload: payload)
    }

    /// As the contract has it: `{"directive":{"header":{…},"payload":{…}}}`.
    public var json: String {
        let header = [
            ("namespace", namespace), ("name", name), ("messageId", messageID), ("dialogRequestId", dialogRequestID),
        ].map { JSONValue.Member(name: $0.0, value: .string($0.1)) }
        let payload = JSONValue(ArraySlice(payload.utf8)) ?? .object([])
        let directive: [JSONValue.Member] = [
            .init(name: "header", value: .object(header)), .init(name: "payload", value: payload),
        ]
        return JSONValue.object([.init(name: "directive", value: .object(directive))]).text
    }
}
