import ApusClientAPI
import ApusCore
import HTTPTypes
import Hummingbird
import NIOCore

/// An error as problem details (RFC 9457), with its number from the catalogue (docs/reference/errors.md).
struct Problem {
    let error: ApusError
    let status: HTTPResponse.Status

    init(_ error: ApusError) { self.init(error, Self.status(of: error.code)) }

    init(_ error: ApusError, _ status: HTTPResponse.Status) { (self.error, self.status) = (error, status) }

    var json: JSON {
        .object([
            ("type", .string("urn:apus:error:\(error.code.number)")), ("title", .string(error.code.summary)),
            ("status", .int(status.code)), ("detail", .string(error.message)), ("code", .int(Int(error.code.number))),
        ])
    }

    var response: Response {
        var response = Response(
            status: status, headers: [.contentType: "application/problem+json", .cacheControl: "no-store"],
            body: ResponseBody(byteBuffer: ByteBuffer(string: json.text)))
        if status == .unauthorized { response.headers[.wwwAuthenticate] = "Bearer" }
        if status == .tooManyRequests || status == .serviceUnavailable { response.headers[.retryAfter] = "1" }
        return response
    }

    /// The status that makes HTTP clients react correctly to an error (RFC 9110 §15).
    static func status(of code: ErrorCode) -> HTTPResponse.Status {
        switch code {
        case .malformed, .badParameter, .jsonInvalid, .userPropertyName, .callParametersInvalid: .badRequest
        case .tokenInvalid, .tokenExpired, .tokenRefused: .unauthorized
        case .notAllowed, .illegalRelation, .builtInSetting, .deviceDisabled, .deviceTokenRefused: .forbidden
        case .targetUnknown, .methodUnknown, .pathIllegal, .propertyUnknown, .actionUnknown, .callbackUnknown,
            .callUnknown, .callRequestFailed, .destinationUnknown, .notImplemented, .recordingListEmpty:
            .notFound
        case .kicked, .versionConflict, .boundToOtherUser, .boundToThisUser, .otherCustomer, .duplicateMessage,
            .actionFailed, .passToDeviceFailed, .passToServerFailed, .cancelled, .callRejected, .peerHungUp, .onCalling,
            .rejectedByOthers, .answeredByOthers, .callCancelled, .calleeBusy, .remoteStopped, .networkChanged,
            .enteredBackground, .hungUp, .duplicateConnection, .notSynchronized:
            .conflict
        case .frameTooLarge, .messageTooLarge: .contentTooLarge
        case .overloaded, .tooManyConnections, .tooManyStreams, .deviceBusy, .deviceChannelsFull: .tooManyRequests
        case .deadlineExceeded, .answerTimedOut, .peerTimedOut, .callNotAnswered, .callTimedOut, .mediaConnectFailed,
            .mediaDisconnected, .connectionIdle, .openingTimedOut:
            .gatewayTimeout
        case .linkLost, .moved, .noRoute, .noOwnership, .shuttingDown, .unavailable, .noRelayAddress, .targetOffline,
            .staleEpoch,
            .storageFailed:
            .serviceUnavailable
        default: .internalServerError
        }
    }
}

extension HTTPField.Name {
    static let idempotencyKey = Self(unchecked: "Idempotency-Key")
    static let prefer = Self(unchecked: "Prefer")
    static let traceparent = Self(unchecked: "traceparent")

    /// - Precondition: the text is a field name.
    init(unchecked text: String) {
        guard let name = Self(text) else { preconditionFailure("\(text) is not a field name") }
        self = name
    }
}
