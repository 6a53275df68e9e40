import ApusCore
import ApusStorage
import Foundation

/// The keys of an ownership store in etcd, and the transactions on them.
///
/// | key | value |
/// |---|---|
/// | `PREFIX CLUSTER/store` | the store's identity, 32 hexadecimal digits |
/// | `PREFIX CLUSTER/map` | the value; its modification revision is the store's revision |
/// | `PREFIX CLUSTER/version` | empty; exists after ``EtcdRestore`` raised etcd's revision with it |
/// | `PREFIX CLUSTER/lease/NODE` | the node's incarnation; ends with its lease |
///
/// Each transaction reads or compares the identity, so none has an effect on another store. etcd carries out a
/// transaction that only reads linearizably, as it does a single read.
struct EtcdKeys: Sendable {
    let store: Data
    let map: Data
    /// The range that is watched: the first key, and the first one after the range. It includes the identity and the
    /// value.
    let first: Data
    let end: Data
    private let version: Data
    private let leases: String

    init(prefix: String, cluster: ClusterID) {
        let start = "\(prefix)\(cluster)"
        store = Data("\(start)/store".utf8)
        map = Data("\(start)/map".utf8)
        // "map" to "store", without "version".
        first = map
        end = Data("\(start)/t".utf8)
        version = Data("\(start)/version".utf8)
        leases = "\(start)/lease/"
    }

    // MARK: Requests

    /// Creates the store's identity unless the store exists.
    func create(_ identity: StoreID) -> EtcdTxnRequest {
        var request = EtcdTxnRequest()
        request.compare = [Self.isAbsent(store), Self.isAbsent(map)]
        request.success = [put(store, identity.bytes), range(store)]
        request.failure = [range(store)]
        return request
    }

    /// Reads the identity and the value.
    /// - Parameter keysOnly: True to read the value's revision without the value.
    func read(keysOnly: Bool = false) -> EtcdTxnRequest {
        var request = EtcdTxnRequest()
        request.success = [range(store), range(map, keysOnly: keysOnly)]
        return request
    }

    /// Replaces the value if it has the expected revision and the store the expected identity.
    func swap(expected: UInt64, value: [UInt8], in identity: StoreID) -> EtcdTxnRequest {
        var isSameStore = EtcdCompare()
        isSameStore.result = .equal
        isSameStore.target = .value
        isSameStore.key = store
        isSameStore.value = identity.bytes
        var request = EtcdTxnRequest()
        request.compare = [isSameStore, expected == 0 ? Self.isAbsent(map) : hasRevision(expected)]
        request.success = [put(map, Data(value))]
        request.failure = [range(store)]
        return request
    }

    /// Changes a key that is neither of the two.
    func raise() -> EtcdTxnRequest {
        var request = EtcdTxnRequest()
        request.success = [put(version, Data())]
        return request
    }

    /// Writes the identity and the value, whatever they are.
    func restore(_ record: RevisionFile) -> EtcdTxnRequest {
        var request = EtcdTxnRequest()
        request.success = [put(store, record.store.bytes), put(map, Data(record.value))]
        return request
    }

    /// Shows that the incarnation holds a lease, until that ends.
    func hold(_ lease: Int64, by node: NodeID) -> EtcdTxnRequest {
        var hold = put(Data("\(leases)\(node.name)".utf8), Data("\(node.incarnation)".utf8))
        hold.requestPut.lease = lease
        var request = EtcdTxnRequest()
        request.success = [hold]
        return request
    }

    /// Reads who holds a lease.
    func readLeases() -> EtcdTxnRequest {
        var operation = range(Data(leases.utf8))
        // "/" to "0".
        operation.requestRange.rangeEnd = Data((leases.dropLast() + "0").utf8)
        operation.requestRange.limit = Int64(OwnershipLimits.leaseCountMax)
        var request = EtcdTxnRequest()
        request.success = [operation]
        return request
    }

    /// The holders in the answer to ``readLeases()``. Keys that no node wrote are left out.
    func holders(_ response: EtcdTxnResponse) -> Set<NodeID> {
        Set(
            response.responses.flatMap(\.responseRange.kvs).compactMap { pair in
                let name = String(decoding: pair.key.dropFirst(leases.utf8.count), as: UTF8.self)
                guard let name = NodeName(rawValue: name),
                    let incarnation = UInt64(String(decoding: pair.value, as: UTF8.self))
                else { return nil }
                return NodeID(name: name, incarnation: incarnation)
            })
    }

    /// The watch of both keys.
    func watch(from revision: Int64) -> EtcdWatchRequest {
        var create = EtcdWatchCreateRequest()
        create.key = first
        create.rangeEnd = end
        create.startRevision = revision
        create.fragment = true
        var request = EtcdWatchRequest()
        request.createRequest = create
        return request
    }

    private static func isAbsent(_ key: Data) -> EtcdCompare {
        var compare = EtcdCompare()
        compare.result = .equal
        compare.target = .create
        compare.key = key
        compare.createRevision = 0
        return compare
    }

    private func hasRevision(_ revision: UInt64) -> EtcdCompare {
        var compare = EtcdCompare()
        compare.result = .equal
        compare.target = .mod
        compare.key = map
        compare.modRevision = Int64(clamping: revision)
        return compare
    }

    private func range(_ key: Data, keysOnly: Bool = false) -> EtcdRequestOp {
        var range = EtcdRangeRequest()
        range.key = key
        range.keysOnly = keysOnly
        var operation = EtcdRequestOp()
        operation.requestRange = range
        return operation
    }

    private func put(_ key: Data, _ value: Data) -> EtcdRequestOp {
        var put = EtcdPutRequest()
        put.key = key
        put.value = value
        var operation = EtcdRequestOp()
        operation.requestPut = put
        return operation
    }
}

/// What a transaction read.
struct EtcdContents: Sendable {
    /// The bytes under the identity's key; nil if there are none.
    var store: Data?
    /// The value with its revision; nil before the first swap. Without bytes if only keys were read.
    var value: OwnershipValue?
    /// The revision of etcd's key space at the time of the read.
    var revision: Int64

    init(_ response: EtcdTxnResponse, _ keys: EtcdKeys) {
        revision = response.header.revision
        for pair in response.responses.flatMap(\.responseRange.kvs) {
            if pair.key == keys.store { store = pair.value }
            if pair.key == keys.map {
                value = OwnershipValue(revision: UInt64(clamping: pair.modRevision), bytes: [UInt8](pair.value))
            }
        }
    }

    /// The identity of the store; nil if there is none or it cannot be parsed.
    var identity: StoreID? { store.flatMap { StoreID(String(decoding: $0, as: UTF8.self)) } }
}

extension StoreID {
    /// The identity as etcd holds it.
    fileprivate var bytes: Data { Data(description.utf8) }
}
