import ApusCore
import ApusHTTPClient

/// Why a request to etcd failed, and what follows from it.
///
/// etcd states most reasons in the code of the gRPC status, and some in its message only (etcd 3.4,
/// `api/v3rpc/rpctypes/error.go`).
package struct EtcdFailure: Error, Sendable {
    /// What failed, and the label of the metric.
    package enum Kind: String, Sendable {
        /// The endpoint cannot be reached, does not speak the protocol, or its certificate is not valid.
        case unreachable
        /// No answer came in time.
        case timeout
        /// The member has no leader. It refused the request without carrying it out.
        case noLeader = "no_leader"
        /// The user's token is missing, unknown or older than the users' last change.
        case token
        /// The user or the password is wrong, or the user has no permission for the keys.
        case denied
        /// etcd's database has reached its quota, or etcd refuses because of too many requests.
        case full
        /// etcd refused the request for another reason.
        case refused
        /// The member failed while it carried the request out, for example because the leader changed.
        case failed
        /// The caller was cancelled.
        case cancelled
    }

    var kind: Kind
    /// For people: etcd's own sentence, or that of the connection.
    var message: String
    /// True if the request was certainly not carried out and will not be.
    var isUndone: Bool

    init(_ kind: Kind, _ message: String) {
        self.kind = kind
        self.message = message
        isUndone =
            switch kind {
            case .noLeader, .token, .denied, .full, .refused: true
            case .unreachable, .timeout, .failed, .cancelled: false
            }
    }

    /// The failure of a transfer.
    init(_ error: ApusError) {
        switch error.code {
        case .cancelled: self.init(.cancelled, "the call was cancelled")
        case .deadlineExceeded: self.init(.timeout, error.message)
        default:
            self.init(.unreachable, error.message)
            // Nothing was sent.
            isUndone = error.code == .connectFailed
        }
    }

    /// The failure that a complete answer states; nil if it states none. An answer without a status of gRPC is not
    /// from etcd.
    init?(_ head: HTTPHead, trailers: [HTTPHead.Field]) {
        // An answer without messages has the status in its head.
        let fields = head.headers + trailers
        guard let code = fields["grpc-status"].flatMap({ Int($0) }) else {
            self.init(.unreachable, "the server does not speak gRPC: it answers with HTTP \(head.status)")
            return
        }
        guard EtcdStatus(rawValue: code) != .ok else { return nil }
        let message = EtcdStatus.message(fields["grpc-message"] ?? "status \(code)")
        self.init(Self.kind(ofStatus: code, message), message)
    }

    /// This failure with the reason of an earlier one of the same call. What is certain about the request stays.
    func named(as cause: EtcdFailure) -> EtcdFailure {
        var failure = self
        (failure.kind, failure.message) = (cause.kind, cause.message)
        return failure
    }

    /// True if another endpoint, or the same one after a moment, may answer.
    var isOfEndpoint: Bool {
        switch kind {
        case .unreachable, .timeout, .noLeader, .failed, .token: true
        case .denied, .full, .refused, .cancelled: false
        }
    }

    /// What a status of gRPC with this code and message means.
    package static func kind(ofStatus code: Int, _ message: String) -> Kind {
        switch EtcdStatus(rawValue: code) {
        case .deadlineExceeded: .timeout
        case .unauthenticated: .token
        case .permissionDenied: .denied
        case .resourceExhausted: .full
        case .invalidArgument: ofInvalidArgument(message)
        case .failedPrecondition, .outOfRange, .notFound, .unimplemented: .refused
        case .unavailable where message.contains("etcdserver: no leader"): .noLeader
        case .unavailable, .ok, nil:
            // Without a majority etcd answers so when the time of the request is over, also with the status 2 or 14.
            if message.contains("context deadline exceeded") {
                .timeout
            } else {
                message.contains("etcdserver: ") ? .failed : .unreachable
            }
        }
    }

    private static func ofInvalidArgument(_ message: String) -> Kind {
        if message.contains("auth store is old") { return .token }
        let isAboutUser = message.contains("authentication failed") || message.contains("user name is empty")
        return isAboutUser ? .denied : .refused
    }
}
