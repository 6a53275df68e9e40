package import ApusCore
import Foundation

/// What a change over the local network may be (IV-D4, IV-D14).
package enum LocalWrite {
    /// The longest value, in bytes, as in the model.
    private static let byteCountMax = 32 << 10
    private static let root = "ProWritable"

    /// - Parameters:
    ///   - path: such as `ProWritable.volume` or `ProWritable.volume.setVal`.
    ///   - json: the leaf, or the value.
    /// - Returns: the name of the setting, and its value in JSON.
    /// - Throws: 20101 for a path to anything else than a setting, 20105 for a built-in one, 20102 for JSON of another
    ///   shape, 10002 if it is too long.
    package static func setting(_ path: String, _ json: String) throws(ApusError) -> (name: String, json: String) {
        let parts = path.parts(separatedBy: ".")
        guard (2...3).contains(parts.count), parts[0] == root, !parts[1].isEmpty,
            parts.count == 2 || parts[2] == "setVal"
        else { throw ApusError(.pathIllegal, "over the local network a path is \(root).NAME or \(root).NAME.setVal") }
        guard !parts[1].hasPrefix("_") else { throw ApusError(.builtInSetting) }
        guard json.utf8.count <= byteCountMax else {
            throw ApusError(.frameTooLarge, "the value of a setting has at most \(byteCountMax) bytes")
        }
        guard let value = try? JSONSerialization.jsonObject(with: Data(json.utf8), options: .fragmentsAllowed) else {
            throw ApusError(.jsonInvalid, "the value is not JSON")
        }
        guard parts.count == 2 else { return (parts[1], json) }
        guard let leaf = value as? [String: Any], leaf.count == 1, let inner = leaf["setVal"],
            let text = try? JSONSerialization.data(withJSONObject: inner, options: [.fragmentsAllowed, .sortedKeys])
        else { throw ApusError(.jsonInvalid, #"a setting is written as {"setVal":VALUE}"#) }
        return (parts[1], String(decoding: text, as: UTF8.self))
    }
}
