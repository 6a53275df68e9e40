package import ApusCore

extension ThingRoot {
    /// The roots in the order of the whole model.
    static let all: [ThingRoot] = [.readonly, .writable, .action, .user]

    /// The name in paths, which are case-sensitive (IV-D8).
    package var name: String {
        switch self {
        case .readonly: "ProReadonly"
        case .writable: "ProWritable"
        case .action: "Action"
        case .user: "ProUser"
        case .unspecified, .UNRECOGNIZED: ""
        }
    }

    /// The field of a leaf that contains the value (IV-D2).
    package var valueName: String {
        switch self {
        case .readonly: "stVal"
        case .writable: "setVal"
        case .action: "ctlVal"
        case .user: "val"
        case .unspecified, .UNRECOGNIZED: ""
        }
    }
}

/// A path into a thing model, such as `ProWritable._logLevel.setVal` (IV-D3): a root, the name of a leaf, and fields of
/// the leaf. The empty path is the whole model.
package struct ThingPath: Sendable, Hashable, CustomStringConvertible {
    /// The longest path, in bytes.
    package static let byteCountMax = 512
    /// The longest name of a leaf, in bytes.
    package static let nameByteCountMax = 64

    /// The root; nil in the empty path.
    package let root: ThingRoot?
    /// The name of the leaf; nil in a path to a root.
    package let name: String?
    /// The fields below the leaf.
    package let fields: [String]

    /// - Throws: 20101 if the text is not a path.
    package init(_ text: String) throws(ApusError) {
        guard !text.isEmpty else {
            (root, name, fields) = (nil, nil, [])
            return
        }
        guard text.utf8.count <= Self.byteCountMax else {
            throw ApusError(.pathIllegal, "a path has at most \(Self.byteCountMax) bytes")
        }
        let parts = text.parts(separatedBy: ".")
        guard let root = ThingRoot.all.first(where: { $0.name.isExactly(parts[0]) }) else {
            let names = ThingRoot.all.map(\.name).joined(separator: ", ")
            throw ApusError(.pathIllegal, "a path begins with one of \(names)")
        }
        self.root = root
        name = parts.count > 1 ? parts[1] : nil
        fields = Array(parts.dropFirst(2))
        if let name { try Self.check(name) }
        guard fields.allSatisfy({ !$0.isEmpty }) else { throw ApusError(.pathIllegal, "a part of the path is empty") }
    }

    /// - Throws: 20101 if a leaf cannot have this name.
    package static func check(_ name: String) throws(ApusError) {
        let isPlain = name.utf8.allSatisfy { byte in
            switch byte {
            case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "_"):
                true
            default: false
            }
        }
        guard isPlain, (1...nameByteCountMax).contains(name.utf8.count) else {
            throw ApusError(.pathIllegal, "a name is 1 to \(nameByteCountMax) letters, digits, '-' or '_'")
        }
    }

    package var description: String {
        ([root?.name, name].compactMap(\.self) + fields).joined(separator: ".")
    }
}
