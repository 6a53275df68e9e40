/// The methods of etcd's v3 API that the store uses: the paths of their requests.
enum EtcdMethods {
    static let transaction = "/etcdserverpb.KV/Txn"
    static let authenticate = "/etcdserverpb.Auth/Authenticate"
    static let grantLease = "/etcdserverpb.Lease/LeaseGrant"
    /// A stream of requests and answers. The store sends one request.
    static let renewLease = "/etcdserverpb.Lease/LeaseKeepAlive"
    /// A stream of requests and answers. The store sends one request; etcd answers until the transfer ends.
    static let watch = "/etcdserverpb.Watch/Watch"
}
