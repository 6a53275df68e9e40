package import ApusCore
import ApusSessions
package import Foundation

/// The parameters that a caller adds to a call, a JSON object (CALL-3).
///
/// The cluster reads four members and passes the text on as it is. The text is parsed once, when the call starts.
package struct CallExtra: Sendable, Hashable {
    /// The text as the caller has sent it; empty for none.
    package let bytes: Data
    /// The module that shows the call, such as `screen_ipc` (CALL-2).
    package let bizType: String?
    package let channelType: Int64?
    /// The category of the called device, such as `sp_dpsxj`.
    package let category: String?
    /// The media connection is kept after a hang-up (CALL-16).
    package let keepConnect: Bool

    /// An empty text stands for no parameters.
    ///
    /// - Throws: −2500 if the text is longer than ``CallConfiguration/extraByteCountMax``, is no JSON object, has more
    ///   than ``JSONValue/depthMax`` levels, or one of the four members has another type.
    package init(_ bytes: Data = Data(), _ configuration: CallConfiguration = CallConfiguration()) throws(ApusError) {
        guard bytes.count <= configuration.extraByteCountMax else {
            throw ApusError(
                .callParametersInvalid, "extra has at most \(configuration.extraByteCountMax) bytes")
        }
        self.bytes = bytes
        guard !bytes.isEmpty else {
            (bizType, channelType, category, keepConnect) = (nil, nil, nil, false)
            return
        }
        guard let value = JSONValue(Array(bytes)[...]), case .object = value else {
            throw ApusError(
                .callParametersInvalid, "extra is a JSON object of at most \(JSONValue.depthMax) levels")
        }
        bizType = try Self.member("bizType", of: value, "a string", \.string)
        channelType = try Self.member("channelType", of: value, "a whole number", \.integer)
        category = try Self.member("category", of: value, "a string", \.string)
        keepConnect =
            try Self.member("keepConnect", of: value, "true or false") { member in
                if case .bool(let flag) = member { flag } else { nil }
            } ?? false
    }

    private static func member<Value>(
        _ name: String, of object: JSONValue, _ kind: String, _ read: (JSONValue) -> Value?
    ) throws(ApusError) -> Value? {
        guard let member = object[name] else { return nil }
        guard let value = read(member) else {
            throw ApusError(.callParametersInvalid, "the member \(name) of extra is \(kind)")
        }
        return value
    }
}
