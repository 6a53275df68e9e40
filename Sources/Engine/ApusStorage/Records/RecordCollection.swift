package import ApusCore
package import SwiftProtobuf

/// A record of a service's own type.
package struct Record<Body: Message & Sendable>: Sendable {
    package var key: OrderedKey
    package var version: UInt64
    package var fence: RecordFence
    package var body: Body
}

/// An order of a collection's records: its name, and a function that returns a record's entries. A record without
/// entries is not in the index.
package struct RecordIndex<Body: Message & Sendable>: Sendable {
    package let name: String
    package let entries: @Sendable (Body) -> [OrderedKey]

    package init(_ name: String, _ entries: @escaping @Sendable (Body) -> [OrderedKey]) {
        self.name = name
        self.entries = entries
    }
}

/// A named set of records of one type, declared by its service (D16).
///
/// ```swift
/// static let devices = RecordCollection<StoredDevice>(
///     "devices", layout: 1, key: { OrderedKey(.text($0.device)) },
///     indexes: [RecordIndex("account") { [OrderedKey(.text($0.account))] }])
/// ```
///
/// **Changes.** Fields may be added to the message; unknown fields are kept. If an index is added, or its entries
/// change, `layout` must grow. The first node of that release then creates the entries of all records again when it
/// opens the store, and nodes of earlier releases may no longer write the collection (10003).
package struct RecordCollection<Body: Message & Sendable>: RecordCollectionDeclaration {
    package let name: String
    package let layout: UInt32
    private let makeKey: @Sendable (Body) -> OrderedKey
    private let indexes: [RecordIndex<Body>]
    private let usesReserve: Bool

    /// - Parameters:
    ///   - name: At most ``RecordLimits/nameByteCountMax`` bytes, unique in the program.
    ///   - layout: Grows with each change of `indexes`; at least 1.
    ///   - key: A record's key. It must not change while the record exists.
    ///   - usesReserve: True for records of operators. They are accepted even if the store is too full for those of
    ///     clients (``SQLiteLimits/reservePercent``).
    package init(
        _ name: String, layout: UInt32, key: @escaping @Sendable (Body) -> OrderedKey,
        indexes: [RecordIndex<Body>] = [], usesReserve: Bool = false
    ) {
        precondition(layout > 0, "the layout of \(name) is at least 1")
        (self.name, self.layout, self.makeKey, self.indexes) = (name, layout, key, indexes)
        self.usesReserve = usesReserve
    }

    package func key(of body: Body) -> OrderedKey { makeKey(body) }

    /// A write of a record.
    ///
    /// - Throws: 10018 if the message cannot be encoded.
    package func put(
        _ body: Body, fence: RecordFence, if condition: RecordCondition = .any
    ) throws(ApusError) -> RecordWrite {
        let bytes: [UInt8]
        do {
            bytes = try body.serializedBytes()
        } catch {
            throw ApusError(.internalFailure, "a record of \(name) cannot be encoded: \(error)")
        }
        return RecordWrite(
            RecordID(name, makeKey(body)), .put(body: bytes, layout: layout, entries: entries(of: body)),
            fence: fence, condition: condition, usesReserve: usesReserve)
    }

    /// Removes a record and keeps its fence.
    package func remove(_ key: OrderedKey, fence: RecordFence, if condition: RecordCondition = .any) -> RecordWrite {
        RecordWrite(RecordID(name, key), .remove, fence: fence, condition: condition)
    }

    /// Removes a record with its fence.
    package func erase(_ key: OrderedKey, fence: RecordFence, if condition: RecordCondition = .any) -> RecordWrite {
        RecordWrite(RecordID(name, key), .erase, fence: fence, condition: condition)
    }

    /// A condition of the enclosing step: the record's fence and the condition must hold. Changes nothing.
    package func check(_ key: OrderedKey, fence: RecordFence, if condition: RecordCondition = .any) -> RecordWrite {
        RecordWrite(RecordID(name, key), .check, fence: fence, condition: condition)
    }

    /// - Throws: 10021 if the body is not a message of this collection.
    package func record(_ stored: StoredRecord) throws(ApusError) -> Record<Body> {
        Record(key: stored.key, version: stored.version, fence: stored.fence, body: try decode(stored))
    }

    package func entries(_ stored: StoredRecord) throws(ApusError) -> [RecordEntry] { entries(of: try decode(stored)) }

    package func json(_ stored: StoredRecord) throws(ApusError) -> String {
        let body = try decode(stored)
        do {
            return try body.jsonString()
        } catch {
            throw ApusError(.internalFailure, "a record of \(name) cannot be converted to JSON: \(error)")
        }
    }

    package var indexNames: [String] { indexes.map(\.name) }

    private func entries(of body: Body) -> [RecordEntry] {
        indexes.flatMap { index in index.entries(body).map { RecordEntry(index: index.name, value: $0) } }
    }

    private func decode(_ stored: StoredRecord) throws(ApusError) -> Body {
        do {
            return try Body(serializedBytes: stored.body)
        } catch {
            throw ApusError(.storageFailed, "the record \(name)/\(stored.key) cannot be decoded")
        }
    }
}

/// A collection without its type, for stores and `apus admin records`.
package protocol RecordCollectionDeclaration: Sendable {
    var name: String { get }
    var layout: UInt32 { get }
    var indexNames: [String] { get }

    /// The record's entries in the indexes of this layout. Throws 10021 if it cannot be decoded.
    func entries(_ stored: StoredRecord) throws(ApusError) -> [RecordEntry]

    /// The body as JSON, for people. Throws 10021 if it cannot be decoded.
    func json(_ stored: StoredRecord) throws(ApusError) -> String
}

/// The collections of a program's services, and the import of earlier releases' tables into records.
package struct RecordCatalogue: Sendable {
    package let collections: [any RecordCollectionDeclaration]
    package let imports: [RecordImport]

    /// - Precondition: Names are unique.
    package init(_ collections: [any RecordCollectionDeclaration], imports: [RecordImport] = []) {
        precondition(Set(collections.map(\.name)).count == collections.count, "two collections have one name")
        self.collections = collections
        self.imports = imports
    }

    /// The collections of several services.
    package init(merging catalogues: [RecordCatalogue]) {
        self.init(catalogues.flatMap(\.collections), imports: catalogues.flatMap(\.imports))
    }

    package subscript(name: String) -> (any RecordCollectionDeclaration)? { collections.first { $0.name == name } }
}

/// A table of an earlier release whose rows become records. This happens once, in the transaction that drops the table.
package struct RecordImport: Sendable {
    /// A value of a row.
    package enum Value: Sendable, Hashable {
        case null
        case integer(Int64)
        case text(String)
        case bytes([UInt8])
    }

    package let table: String
    /// Converts all rows to records. Each row has its values by column.
    package let convert: @Sendable ([[String: Value]]) throws(ApusError) -> [RecordWrite]

    package init(
        table: String, convert: @escaping @Sendable ([[String: Value]]) throws(ApusError) -> [RecordWrite]
    ) {
        self.table = table
        self.convert = convert
    }
}
