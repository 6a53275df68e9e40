import GRPCCore

/// Why a request to etcd failed, and what follows from it.
///
/// etcd states most reasons in the code of the gRPC status, and some in its message only (etcd 3.4,
/// `api/v3rpc/rpctypes/error.go`).
struct EtcdFailure: Error, Sendable {
    /// What failed, and the label of the metric.
    enum Kind: String, Sendable {
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

    /// - Parameter isCancelled: True if the task was cancelled that sent the request.
    init(_ error: any Error, isCancelled: Bool) {
        guard !isCancelled, !(error is CancellationError) else {
            self.init(.cancelled, "the call was cancelled")
            return
        }
        guard let error = error as? RPCError else {
            self.init(.unreachable, "\(error)")
            return
        }
        let cause = error.cause.map { " (\($0))" } ?? ""
        self.init(Self.kind(of: error), error.message + cause)
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

    private static func kind(of error: RPCError) -> Kind {
        switch error.code {
        case .deadlineExceeded: .timeout
        case .unauthenticated: .token
        case .permissionDenied: .denied
        case .resourceExhausted: .full
        case .invalidArgument: ofInvalidArgument(error.message)
        case .failedPrecondition, .outOfRange, .notFound, .unimplemented: .refused
        case .unavailable:
            if error.message.contains("etcdserver: no leader") {
                .noLeader
            } else {
                error.message.contains("etcdserver: ") ? .failed : .unreachable
            }
        default: error.message.contains("etcdserver: ") ? .failed : .unreachable
        }
    }

    private static func ofInvalidArgument(_ message: String) -> Kind {
        if message.contains("auth store is old") { return .token }
        let isAboutUser = message.contains("authentication failed") || message.contains("user name is empty")
        return isAboutUser ? .denied : .refused
    }
}
