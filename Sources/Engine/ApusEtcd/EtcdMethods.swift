import GRPCCore

/// The methods of etcd's v3 API that the store uses.
enum EtcdMethods {
    static let transaction = MethodDescriptor(fullyQualifiedService: "etcdserverpb.KV", method: "Txn", type: .unary)
    static let authenticate = MethodDescriptor(
        fullyQualifiedService: "etcdserverpb.Auth", method: "Authenticate", type: .unary)
    static let watch = MethodDescriptor(
        fullyQualifiedService: "etcdserverpb.Watch", method: "Watch", type: .bidirectionalStreaming)
}
