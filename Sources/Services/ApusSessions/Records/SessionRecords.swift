package import ApusStorage

/// The durable records of devices, identities and revocations, in the record store that all services share.
/// Isolation: `Sendable`; may be called from any task. Besides the documented errors, methods throw 10006, 10007 and
/// 10021, as ``RecordStore`` does.
package struct SessionRecords: Sendable {
    let store: any RecordStore
    /// The writer in fences: the node and its incarnation; empty if unknown.
    let writer: String

    package init(_ store: any RecordStore, writer: String = "") {
        self.store = store
        self.writer = writer
    }

    /// The collections for the store, including imports of tables of earlier releases.
    package static let catalogue = RecordCatalogue(
        [
            devices, identities, revocations, revocationState, withdrawals, withdrawalState, customers, users,
            usedTokens,
        ],
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
