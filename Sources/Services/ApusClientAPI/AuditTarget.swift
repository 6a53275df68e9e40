import Foundation
import SwiftProtobuf

/// What a request is about, for the audit log: the fields that name devices, accounts and the like. No other field of a
/// request is written to a log.
enum AuditTarget {
    /// By their names in the proto files, in the order of the text.
    private static let names = [
        "customer", "product", "version", "group", "groups", "hook", "ids", "user", "account", "device", "devices",
        "access", "identity", "token_id", "role", "client", "node", "weight", "session", "message", "id", "name",
        "state", "percentage",
    ]
    private static let flags = ["all", "control", "disabled", "enabled", "once", "watched"]
    /// The longest text of a field, in characters.
    private static let lengthMax = 128

    /// Such as `account=neighbours device=front-door`; empty if the request names nothing.
    static func text(of message: some Message) -> String {
        var options = JSONEncodingOptions()
        options.preserveProtoFieldNames = true
        guard let json: [UInt8] = try? message.jsonUTF8Bytes(options: options),
            let fields = try? JSONSerialization.jsonObject(with: Data(json)) as? [String: Any]
        else { return "" }
        let named = names.compactMap { name in
            fields[name].flatMap(Self.value).map { "\(name)=\($0.prefix(lengthMax))" }
        }
        let set = flags.compactMap { name in
            (fields[name] as? NSNumber).map { "\(name)=\($0.boolValue)" }
        }
        return (named + set).joined(separator: " ")
    }

    private static func value(_ field: Any) -> String? {
        switch field {
        case let text as String: text.isEmpty ? nil : text
        case let list as [String]: list.isEmpty ? nil : list.joined(separator: ",")
        case let number as NSNumber: "\(number)"
        default: nil
        }
    }
}
