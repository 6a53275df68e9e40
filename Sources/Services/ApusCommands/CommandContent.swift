package import ApusCore
import ApusSessions
import ApusThings
package import Foundation

/// What a command asks of a device: an action of its model, raw data, or the value of a leaf (IV-D3, IV-D5, IV-D11).
package struct CommandContent: Sendable, Hashable {
    /// `Action.NAME`, the path of a leaf whose value is wanted, or empty for raw data.
    package let path: String
    /// The value of the action in JSON without spaces, or the data; empty for the value of a leaf.
    package let bytes: Data

    /// An action in one of its two forms: `Action.cameraOn` with `{"ctlVal":1}`, or `Action.cameraOn.ctlVal` with `1`.
    ///
    /// - Throws: 20101 if the path is not one of an action, 20102 if the text is not JSON of the right shape.
    package init(path text: String, json: String) throws(ApusError) {
        let path = try ThingPath(text)
        let value = ThingRoot.action.valueName
        guard path.root == .action, let name = path.name, path.fields.isEmpty || path.fields == [value] else {
            throw ApusError(.pathIllegal, "the path of an action is Action.NAME or Action.NAME.\(value)")
        }
        // A value has the same depth in both forms: the leaf around it does not count.
        let written = try JSONValue(checking: json, depthMax: JSONValue.depthMax + (path.fields.isEmpty ? 1 : 0))
        self.path = "\(ThingRoot.action.name).\(name)"
        if path.fields.isEmpty {
            guard case .object(let members) = written, members.count == 1, let inner = written[value] else {
                throw ApusError(.jsonInvalid, "the JSON for \(self.path) is {\"\(value)\":VALUE}")
            }
            bytes = Data(inner.text.utf8)
        } else {
            bytes = Data(written.text.utf8)
        }
    }

    package init(data: Data) { (path, bytes) = ("", data) }

    /// The value of a leaf is wanted, such as that of `ProReadonly.battery`.
    package init(reading leaf: String) { (path, bytes) = (leaf, Data()) }

    /// An id that no other command has.
    static func randomID() -> Data { Data((0..<16).map { _ in UInt8.random(in: 0...(.max)) }) }

    private static let actionStart = "\(ThingRoot.action.name)."

    /// The name of the action; nil for the others.
    var action: String? { Self.action(of: path) }

    /// The name of the action with this path; nil if it is none.
    static func action(of path: String) -> String? {
        path.hasPrefix(actionStart) ? String(path.dropFirst(actionStart.utf8.count)) : nil
    }

    /// Whether a command of this path asks for the value of a leaf.
    static func isRead(_ path: String) -> Bool { !path.isEmpty && !path.hasPrefix(actionStart) }

    // MARK: Recordings (docs/recordings.md)

    /// The actions that name times of recordings, and the fields with them.
    private static let times = ["_recordings": ["from", "to"], "_playback": ["at"]]

    /// The content of a command that asks for recordings, with no time before the device's data was its account's: what
    /// was recorded then is a former account's. Any other content is returned as it is.
    ///
    /// - Parameter since: as ``DeviceRecord/dataSince``.
    package static func content(_ content: Data, of path: String, since: UInt64) -> Data {
        guard since > 0, let fields = action(of: path).flatMap({ times[$0] }),
            var value = JSONValue(ArraySlice(content))
        else { return content }
        var isChanged = false
        for field in fields {
            guard case .number(let text)? = value[field] else { continue }
            // A number in another form than that of an integer is not compared.
            guard Int64(text).map({ $0 < Int64(clamping: since) }) ?? true else { continue }
            if value.set([field], to: .number("\(since)")) { isChanged = true }
        }
        return isChanged ? Data(value.text.utf8) : content
    }
}
