package import ApusCore

/// What a client does after an answer of an S3 server, or after none. Pure.
package enum S3Verdict: Sendable, Equatable {
    /// The answer counts; the caller reads its status.
    case answer
    /// The failure may pass: the request is repeated after a wait.
    case again(String)
    /// The server refuses the keys or the time of the signature: both are read again, and the request is repeated once.
    case signAgain(String)
    case fail(ApusError)

    /// Codes of failures that may pass, whatever their status.
    private static let passing = [
        "RequestTimeout", "InternalError", "SlowDown", "ServiceUnavailable", "BadDigest", "IncompleteBody",
        "XAmzContentSHA256Mismatch", "ConditionalRequestConflict", "OperationAborted", "Throttling",
    ]
    private static let full = ["QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "StorageFull"]
    private static let keys = ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"]

    /// - Parameters:
    ///   - code: of the error's document; nil if it has no document, as an answer to `HEAD`.
    ///   - place: of the store, for messages.
    package static func of(status: Int, code: String?, place: String) -> Self {
        let name = code.map { "\(status) \($0)" } ?? "\(status)"
        if let code {
            if full.contains(where: code.isExactly) {
                return .fail(ApusError(.storageFull, "\(place) is full (\(name))"))
            }
            if keys.contains(where: code.isExactly) { return .signAgain(name) }
            if passing.contains(where: code.isExactly) { return .again(name) }
        }
        switch status {
        case 404 where code?.isExactly("NoSuchBucket") == true:
            return .fail(ApusError(.storageFailed, "\(place) has no such bucket; make it, or change objects.store"))
        case 200..<300, 404, 412, 416: return .answer
        case 401, 403: return .signAgain(name)
        case 408, 409, 425, 429, 500, 502, 503, 504: return .again(name)
        case 413: return .fail(ApusError(.frameTooLarge, "\(place) takes no object of this size (\(name))"))
        case 507: return .fail(ApusError(.storageFull, "\(place) is full (\(name))"))
        case 300..<400:
            return .fail(
                ApusError(
                    .storageFailed,
                    "\(place) is elsewhere (\(name)); check objects.s3_endpoint and objects.s3_region"))
        default: return .fail(ApusError(.storageFailed, "\(place) refuses a request (\(name))"))
        }
    }

    /// - Parameter error: of a request without an answer.
    package static func of(_ error: ApusError) -> Self {
        switch error.code {
        case .connectFailed, .linkLost, .deadlineExceeded, .malformed, .overloaded: .again(error.message)
        default: .fail(error)
        }
    }
}
