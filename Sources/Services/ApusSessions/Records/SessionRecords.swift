package import ApusStorage

/// What the cluster remembers of devices, identities and revocations, in the record store that all services share.
///
/// Isolation: `Sendable`; may be called from any task. Errors beside those that are named: 10006, 10007 and 10021, as
/// of ``RecordStore``.
package struct SessionRecords: Sendable {
    let store: any RecordStore
    /// Who writes, in the fences: the node and its incarnation; empty where that is unknown.
    let writer: String

    package init(_ store: any RecordStore, writer: String = "") {
        self.store = store
        self.writer = writer
    }

    /// What the store is to know of them, tables of earlier releases included.
    package static let catalogue = RecordCatalogue(
        [devices, identities, revocations, revocationState],
        imports: [earlierDevices, earlierIdentities, earlierRevocations])
}

extension [String: RecordImport.Value] {
    func integer(_ column: String) -> Int64? {
        guard case .integer(let number)? = self[column] else { return nil }
        return number
    }

    func text(_ column: String) -> String? {
        guard case .text(let text)? = self[column] else { return nil }
        return text
    }

    func bytes(_ column: String) -> [UInt8]? {
        guard case .bytes(let bytes)? = self[column] else { return nil }
        return bytes
    }
}
