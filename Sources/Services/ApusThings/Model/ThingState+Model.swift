package import ApusCore
import SwiftProtobuf

/// A device's thing model: states that the device reports, settings that apps write and the device applies, actions,
/// and properties of the account (IV-D1).
///
/// **Versions.** Each change increments the model's version. A leaf's version is the model's version after the last
/// change of the leaf's value. A write that requires a version is refused with 10030 if the leaf has another one.
///
/// **Settings** have two values: the desired one, and the one that the device reported last. If they differ, the
/// setting is pending. An acknowledged write is never lost to a report: a report in answer to an earlier value does not
/// replace the newest one, and a report that the device makes unasked replaces it only if the setting is not pending.
///
/// **Limits.** ``byteCountMax`` limits the whole model, in which each leaf counts ``leafByteCount`` in addition to its
/// texts. ``valueByteCountMax`` limits a value. The limits of ``JSONValue`` also apply to values.
///
/// Pure value.
extension ThingState {
    /// The limit of a model, in bytes: names, values and reported values.
    package static let byteCountMax = 64 << 10
    /// The limit of one value, in bytes. An event with such a value fits into the state of a topic.
    package static let valueByteCountMax = 32 << 10
    /// The bytes that a leaf counts in addition to its texts.
    package static let leafByteCount = 48
    /// The user property that every model has (IV-D8).
    package static let builtInName = "_buildIn"
    /// The state whose value comes from the session service (IV-D9).
    package static let onlineName = "_online"
    /// The state in which a device names its product (docs/things.md).
    package static let productName = "_product"

    package var byteCount: Int { leaves.reduce(0) { $0 + $1.byteCount } }

    private func index(_ root: ThingRoot, _ name: String) -> (index: Int, isFound: Bool) {
        let index = leaves.firstIndex { ($0.root.rawValue, $0.name) >= (root.rawValue, name) } ?? leaves.endIndex
        return (index, index < leaves.endIndex && leaves[index].root == root && leaves[index].name.isExactly(name))
    }

    private func leaf(_ root: ThingRoot, _ name: String) -> ThingLeaf? {
        let (index, isFound) = index(root, name)
        if isFound { return leaves[index] }
        guard root == .user, name == Self.builtInName else { return nil }
        return .with { ($0.root, $0.name, $0.value) = (.user, Self.builtInName, "{}") }
    }

    // MARK: Reading

    /// A part of the model (IV-D3).
    ///
    /// - Parameter online: the leaf `ProReadonly._online`.
    /// - Throws: 21003 if the model has nothing at the path.
    package func read(_ path: ThingPath, online: ThingLeaf) throws(ApusError) -> ThingReadReply {
        guard let root = path.root, let name = path.name else {
            let members = ThingRoot.all.map { JSONValue.Member(name: $0.name, value: tree(of: $0, online)) }
            let whole = path.root.map { tree(of: $0, online) } ?? JSONValue.object(members)
            return .with { ($0.json, $0.version) = (whole.text, version) }
        }
        let isOnline = root == .readonly && name == Self.onlineName
        guard let leaf = isOnline ? online : leaf(root, name), let part = leaf.tree[path.fields[...]] else {
            throw ApusError(.propertyUnknown, "the model has nothing at \(path)")
        }
        return .with { ($0.json, $0.version, $0.isPending) = (part.text, leaf.version, leaf.isPending) }
    }

    /// Whether a value need not be requested from the device: the device reported it recently enough, or the value does
    /// not come from the device.
    ///
    /// The time of a value is in whole seconds, so the value may be up to a second younger than computed.
    package func isFresh(_ path: ThingPath, maxAgeMs: Int64, at nowMs: Int64) -> Bool {
        guard let root = path.root, let name = path.name, root == .readonly || root == .writable else {
            return path.root == .user
        }
        guard root != .readonly || name != Self.onlineName else { return true }
        guard let leaf = leaf(root, name) else { return false }
        return !leaf.isPending && nowMs - leaf.time * 1000 <= maxAgeMs
    }

    private func tree(of root: ThingRoot, _ online: ThingLeaf) -> JSONValue {
        var found = leaves.filter { $0.root == root }
        if root == .readonly { found.append(online) }
        if root == .user, !index(.user, Self.builtInName).isFound, let builtIn = leaf(.user, Self.builtInName) {
            found.append(builtIn)
        }
        return .object(
            found.sorted { $0.name < $1.name }.map { JSONValue.Member(name: $0.name, value: $0.tree) })
    }

    /// The pending settings, by name.
    package var pending: [ThingLeaf] { leaves.filter(\.isPending) }

    /// The product that the device reported; empty: none.
    package var product: String {
        let (index, isFound) = index(.readonly, Self.productName)
        guard isFound, let text = JSONValue(ArraySlice(leaves[index].value.utf8))?.string else { return "" }
        return ProductID(rawValue: text)?.rawValue ?? ""
    }

    /// The answer to a change that was checked against the schema of another product than the device has; nil if the
    /// change may be carried out.
    ///
    /// Properties of the account have no schema. A device's report of its product is checked against the schema of the
    /// new product.
    package func refusal(of path: ThingPath, checked: String) -> ThingChanged? {
        guard path.root != .user, path.root != .readonly || path.name != Self.productName else { return nil }
        let product = product
        guard product != checked else { return nil }
        return .with { ($0.productDiffers, $0.product) = (true, product) }
    }

    // MARK: Changes of apps

    /// Writes a setting or a user property, or a field of one (IV-D4, IV-D8).
    ///
    /// - Parameters:
    ///   - known: the version that the leaf must have; 0: any version.
    ///   - writer: the client that writes; nil: unknown, since the request comes from a node of an earlier release.
    ///   - time: the time of the change, in Unix seconds.
    /// - Throws: 20101 if the path cannot be written, 20102 if the text is not valid JSON for it, 10030 if the leaf has
    ///   another version, 10002 if the value or the model becomes too large.
    package mutating func write(
        _ path: ThingPath, _ json: String, ifVersion known: UInt64, by writer: ThingWriter? = nil, time: Int64
    ) throws(ApusError) -> ThingChanged {
        guard let root = path.root, let name = path.name, root == .writable || root == .user else {
            throw ApusError(.pathIllegal, "only leaves of ProWritable and ProUser can be written")
        }
        guard var leaf = leaf(root, name) else {
            throw ApusError(.pathIllegal, "the model has no \(root.name).\(name)")
        }
        guard root == .writable || !path.fields.isEmpty else {
            throw ApusError(.pathIllegal, "write \(path).\(root.valueName), or a field of it")
        }
        guard known == 0 || known == leaf.version else {
            throw ApusError(.versionConflict, "\(root.name).\(name) has version \(leaf.version)")
        }
        leaf.value = try leaf.value(with: ThingPart(path, json))
        return try put(leaf, by: writer, time: time)
    }

    /// Adds a user property, or replaces its value (IV-D6).
    ///
    /// - Throws: 8605 if the name begins with `_`, 20101 if it is not a valid name, otherwise as
    ///   ``write(_:_:ifVersion:by:time:)``.
    package mutating func addUser(_ name: String, _ json: String, time: Int64) throws(ApusError) -> ThingChanged {
        try Self.checkUser(name)
        var leaf = leaf(.user, name) ?? .with { ($0.root, $0.name) = (.user, name) }
        leaf.value = try JSONValue(checking: json).text
        return try put(leaf, time: time)
    }

    /// Deletes a user property (IV-D7).
    ///
    /// - Throws: 8605 if the name begins with `_`, 20101 if it is not a valid name, 21003 if the property does not
    ///   exist.
    package mutating func deleteUser(_ name: String) throws(ApusError) -> ThingChanged {
        try Self.checkUser(name)
        let (index, isFound) = index(.user, name)
        guard isFound else { throw ApusError(.propertyUnknown, "there is no ProUser.\(name)") }
        let path = leaves.remove(at: index).path
        version += 1
        return .with { ($0.path, $0.version, $0.previousVersion) = (path, version, version - 1) }
    }

    private static func checkUser(_ name: String) throws(ApusError) {
        guard !name.hasPrefix("_") else { throw ApusError(.userPropertyName) }
        try ThingPath.check(name)
    }

    // MARK: Reports of the device

    /// Sets a state, the value of a setting or an action that the device reports.
    ///
    /// - Parameter received: the newest version of a setting that the device has received; 0: the report does not
    ///   answer a setting.
    /// - Throws: as ``write(_:_:ifVersion:by:time:)``.
    package mutating func report(
        _ path: ThingPath, _ json: String, received: UInt64, time: Int64
    ) throws(ApusError) -> ThingChanged {
        guard let root = path.root, let name = path.name, root != .user else {
            throw ApusError(.pathIllegal, "a device reports leaves of ProReadonly, ProWritable and Action")
        }
        guard root != .readonly || name != Self.onlineName else {
            throw ApusError(.pathIllegal, "\(path) is set by the cluster")
        }
        var leaf = leaf(root, name) ?? .with { ($0.root, $0.name, $0.value) = (root, name, "null") }
        let part = try ThingPart(path, json)
        // A node of an earlier release does not check the product's name, so it is checked here.
        if part.isProduct { _ = try part.product() }
        guard root == .writable else {
            leaf.value = try leaf.value(with: part)
            return try put(leaf, time: time)
        }
        // A value that the device has not received remains: the report answers an earlier value, or was made unasked
        // while the setting is pending.
        let isKept = leaf.version > 0 && (received > 0 ? received < leaf.version : leaf.isPending)
        var device = leaf
        if !leaf.reported.isEmpty { device.value = leaf.reported }
        leaf.reported = try device.value(with: part)
        if !isKept { leaf.value = leaf.reported }
        return try put(leaf, time: time)
    }

    private mutating func put(
        _ new: ThingLeaf, by writer: ThingWriter? = nil, time: Int64
    ) throws(ApusError) -> ThingChanged {
        let (index, isFound) = index(new.root, new.name)
        let before = isFound ? leaves[index] : nil
        var leaf = new
        leaf.writers = leaf.writers(after: before, by: writer, version: version + 1)
        guard before.map({ !leaf.isExactly($0) }) ?? true else { return ThingChanged(leaf, from: version, to: version) }
        let longest = max(leaf.value.utf8.count, leaf.reported.utf8.count)
        guard longest <= Self.valueByteCountMax else {
            throw ApusError(
                .frameTooLarge, "\(leaf.path) would have \(longest) bytes, and at most \(Self.valueByteCountMax)")
        }
        let size = byteCount - (before?.byteCount ?? 0) + leaf.byteCount
        guard size <= Self.byteCountMax else {
            throw ApusError(
                .frameTooLarge,
                "with \(leaf.path) of \(leaf.byteCount) bytes the model has \(size), and at most \(Self.byteCountMax)")
        }
        version += 1
        if before.map({ !leaf.value.isExactly($0.value) }) ?? true { (leaf.time, leaf.version) = (time, version) }
        if isFound { leaves[index] = leaf } else { leaves.insert(leaf, at: index) }
        return ThingChanged(leaf, from: version - 1, to: version)
    }
}

extension ThingChanged {
    init(_ leaf: ThingLeaf, from previous: UInt64, to version: UInt64) {
        self.init()
        (path, json, isPending) = (leaf.path, leaf.tree.text, leaf.isPending)
        (previousVersion, self.version) = (previous, version)
    }
}

extension ThingLeaf {
    package var path: String { "\(root.name).\(name)" }
    package var valuePath: String { "\(path).\(root.valueName)" }

    var byteCount: Int {
        name.utf8.count + value.utf8.count + reported.utf8.count + ThingState.leafByteCount
            + writers.reduce(0) { $0 + $1.account.utf8.count + $1.access.utf8.count + ThingState.leafByteCount }
    }

    /// True if both leaves are equal, byte by byte.
    func isExactly(_ other: ThingLeaf) -> Bool {
        root == other.root && name.isExactly(other.name) && value.isExactly(other.value)
            && reported.isExactly(other.reported) && time == other.time && version == other.version
            && writers == other.writers
    }

    /// True for a setting whose value the device has not reported yet.
    package var isPending: Bool { root == .writable && !value.isExactly(reported) }

    /// The leaf as paths and apps see it (IV-D2).
    package var tree: JSONValue {
        let value = JSONValue(ArraySlice(value.utf8), isStored: true) ?? .null
        let time = JSONValue.number("\(time)")
        // The members are in the order that the contract shows.
        return switch root {
        case .user: .object([.init(name: "t", value: time), .init(name: root.valueName, value: value)])
        default: .object([.init(name: root.valueName, value: value), .init(name: "t", value: time)])
        }
    }

    /// The value after a write of a part.
    /// - Throws: 20101 if no object contains the field, 20102 if the value exceeds the limits of JSON.
    func value(with part: ThingPart) throws(ApusError) -> String {
        guard !part.fields.isEmpty else { return part.value.text }
        var value = JSONValue(ArraySlice(value.utf8), isStored: true) ?? .null
        guard value.set(part.fields[...], to: part.value) else {
            throw ApusError(.pathIllegal, "\(path) has no object of which this is a field")
        }
        return try JSONValue(checking: value.text, isStored: true).text
    }
}

extension JSONValue {
    /// - Parameters:
    ///   - depthMax: the maximum nesting depth.
    ///   - isStored: as in ``JSONValue/init(_:depthMax:isStored:)``.
    /// - Throws: 20102 if the text is not JSON, or exceeds a limit of ``JSONValue``; 10002 over
    ///   ``ThingState/byteCountMax``.
    package init(
        checking text: String, depthMax: Int = Self.depthMax, isStored: Bool = false
    ) throws(ApusError) {
        guard text.utf8.count <= ThingState.byteCountMax else {
            throw ApusError(
                .frameTooLarge, "the JSON has \(text.utf8.count) bytes, and at most \(ThingState.byteCountMax)")
        }
        guard let value = JSONValue(ArraySlice(text.utf8), depthMax: depthMax, isStored: isStored) else {
            throw ApusError(
                .jsonInvalid,
                """
                no JSON, or nested deeper than \(Self.depthMax), with an object of more than \(Self.memberCountMax) \
                members, or a number of more than \(Self.numberByteCountMax) characters or beyond the range of a double
                """)
        }
        self = value
    }
}
