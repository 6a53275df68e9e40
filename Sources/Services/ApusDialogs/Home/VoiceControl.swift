import ApusContract
import ApusCore
import ApusGrammar
import ApusThings

/// A control of a device, checked.
///
/// Pure value.
struct VoiceControl: Sendable {
    /// What people can set, read or do.
    enum What: String, Sendable, CaseIterable {
        case power, brightness, temperature, volume, position, speed, humidity, battery, open, lock, alarm

        /// One of two values, and no number.
        var isSwitch: Bool {
            switch self {
            case .power, .open, .lock, .alarm: true
            default: false
            }
        }

        /// By how much it is changed by words such as louder or warmer, in its unit; nil: it is not.
        var stepAmount: Int? {
            switch self {
            case .brightness, .volume, .position, .speed: 10
            case .temperature: 1
            case .power, .humidity, .battery, .open, .lock, .alarm: nil
            }
        }

        /// The values that such words lead to.
        var stepRange: ClosedRange<Double> { self == .temperature ? 5...35 : 0...100 }

        /// A value after a step, as JSON. A value beyond the range is not changed further in that direction.
        func stepped(_ value: Double, by amount: Double) -> String {
            let range = min(value, stepRange.lowerBound)...max(value, stepRange.upperBound)
            let next = min(max(value + amount, range.lowerBound), range.upperBound)
            return next == next.rounded() ? "\(Int(next))" : "\(next)"
        }

        /// One of the two values opens a way into the home, or ends its protection.
        var isGuarded: Bool {
            switch self {
            case .open, .lock, .alarm: true
            default: false
            }
        }
    }

    /// The longest value for on or off, in bytes.
    static let jsonByteCountMax = 64
    /// The longest path, in bytes.
    static let pathByteCountMax = 160

    let what: What
    /// Such as `ProWritable.power.setVal`; nil if it can only be read.
    let path: String?
    /// Nil if it cannot be read: it is an action without a state.
    let statePath: String?
    let isAction: Bool
    /// The values for on, open, locked and armed, and for the opposite, in JSON.
    let onJSON: String
    let offJSON: String
    let risk: ClientVoiceRisk

    /// - Throws: 21031 if it is not valid.
    init(_ control: ClientVoiceControl, of id: String) throws(ApusError) {
        func invalid(_ text: String) -> ApusError { ApusError(.badParameter, "\(id): \(text)") }
        guard let what = What(rawValue: control.what) else {
            let names = What.allCases.map(\.rawValue).joined(separator: ", ")
            throw invalid("what is one of \(names)")
        }
        self.what = what
        let root: ThingRoot?
        if control.path.isEmpty {
            (path, root) = (nil, nil)
        } else {
            (path, root) = try Self.path(control.path, of: id)
        }
        isAction = root == .action
        guard root == nil || root == .writable || root == .action else {
            throw invalid("what is set is in ProWritable or Action")
        }
        if control.statePath.isEmpty {
            statePath = root == .writable ? path : nil
        } else {
            statePath = try Self.path(control.statePath, of: id).path
        }
        guard path != nil || statePath != nil else { throw invalid("a control has a path or a statePath") }
        func json(_ text: String, _ other: String) throws(ApusError) -> String {
            guard text.utf8.count <= Self.jsonByteCountMax else { throw invalid("a value is too long") }
            return text.isEmpty ? other : try JSONValue(checking: text).text
        }
        onJSON = try json(control.onJson, "true")
        offJSON = try json(control.offJson, "false")
        guard (0...3).contains(control.risk.rawValue) else { throw invalid("the risk is not one of those") }
        risk = control.risk
    }

    /// A path to the value of a leaf. The names of the cluster's own actions begin with `_`.
    private static func path(_ text: String, of id: String) throws(ApusError) -> (path: String, root: ThingRoot) {
        let path = try ThingPath(text)
        guard text.utf8.count <= pathByteCountMax else {
            throw ApusError(.badParameter, "\(id): a path has at most \(pathByteCountMax) bytes")
        }
        guard let root = path.root, let name = path.name, root != .action || !name.hasPrefix("_") else {
            throw ApusError(.badParameter, "\(id): \(text) is not the path of a leaf")
        }
        let fields = path.fields.isEmpty ? [root.valueName] : path.fields
        return (([root.name, name] + fields).joined(separator: "."), root)
    }

    /// How certain a person must be.
    ///
    /// - Parameter isOn: that it becomes on, open, locked or armed.
    /// - Parameter kind: covers and windows may be opened without a question.
    func risk(isOn: Bool, kind: VoiceKind) -> ClientVoiceRisk {
        guard risk == .unspecified else { return risk }
        // Closing, locking and arming are safe.
        let isSafe = what == .open ? !isOn : (what == .lock || what == .alarm) ? isOn : false
        guard !isSafe else { return .harmless }
        let opensCover = what == .open && (kind == .cover || kind == .window)
        return what.isGuarded && !opensCover ? .guarded : .harmless
    }
}
