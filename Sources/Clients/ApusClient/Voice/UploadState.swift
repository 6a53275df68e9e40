public import ApusCore

/// What became of a sentence or an event that a device sends (VA-13). The raw value is its name in texts.
public enum UploadState: String, Sendable, Hashable, CaseIterable {
    /// It waits, or is being sent.
    case pending = "PENDING"
    case success = "SUCCESS"
    /// It has arrived, and nothing follows from it.
    case successNoContent = "SUCCESS_NO_CONTENT"
    case notConnected = "NOT_CONNECTED"
    /// The device has not synchronized its dialog since it connected.
    case notSynchronized = "NOT_SYNCHRONIZED"
    /// The answer cannot be understood.
    case protocolError = "PROTOCOL_ERROR"
    case serverInternalError = "SERVER_INTERNAL_ERROR"
    /// The cluster does not carry it out.
    case refused = "REFUSED"
    /// It was withdrawn before it was answered.
    case canceled = "CANCELED"
    /// Too many are sent.
    case throttled = "THROTTLED"
    /// The token does not allow it.
    case invalidAuth = "INVALID_AUTH"
    case badRequest = "BAD_REQUEST"
    /// Another error, such as of the integrator's server.
    case serverOtherError = "SERVER_OTHER_ERROR"

    /// Whether nothing follows.
    public var isEnd: Bool { self != .pending }

    /// The state of an upload that a server has answered over HTTP.
    public init(httpStatus status: Int) {
        switch status {
        case 204: self = .successNoContent
        case 200..<300: self = .success
        case 400, 413, 422: self = .badRequest
        case 401, 403: self = .invalidAuth
        case 429: self = .throttled
        case 500: self = .serverInternalError
        case 501..<600: self = .serverOtherError
        case 402, 404..<500: self = .refused
        default: self = .protocolError
        }
    }

    /// The state of an upload that has failed.
    public init(_ error: ApusError) {
        switch error.code {
        case .notConnected, .linkLost, .noRoute, .shuttingDown, .unavailable: self = .notConnected
        case .notSynchronized: self = .notSynchronized
        case .malformed, .methodUnknown, .versionUnsupported: self = .protocolError
        case .internalFailure, .storageFailed: self = .serverInternalError
        case .targetUnknown, .versionConflict, .duplicateMessage, .notImplemented: self = .refused
        case .cancelled: self = .canceled
        case .overloaded, .tooManyConnections, .tooManyStreams: self = .throttled
        case .tokenInvalid, .tokenExpired, .tokenRefused, .kicked, .notAllowed, .illegalRelation, .deviceDisabled:
            self = .invalidAuth
        case .badParameter, .frameTooLarge, .messageTooLarge, .jsonInvalid: self = .badRequest
        default: self = .serverOtherError
        }
    }
}
