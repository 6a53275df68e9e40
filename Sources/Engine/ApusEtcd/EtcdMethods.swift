import GRPCCore

/// The methods of etcd's v3 API that the store uses.
enum EtcdMethods {
    static let transaction = MethodDescriptor(fullyQualifiedService: "etcdserverpb.KV", method: "Txn", type: .unary)
    static let authenticate = MethodDescriptor(
        fullyQualifiedService: "etcdserverpb.Auth", method: "Authenticate", type: .unary)
    static let grantLease = MethodDescriptor(
        fullyQualifiedService: "etcdserverpb.Lease", method: "LeaseGrant", type: .unary)
    static let renewLease = MethodDescriptor(
        fullyQualifiedService: "etcdserverpb.Lease", method: "LeaseKeepAlive", type: .bidirectionalStreaming)
    static let watch = MethodDescriptor(
        fullyQualifiedService: "etcdserverpb.Watch", method: "Watch", type: .bidirectionalStreaming)
}
