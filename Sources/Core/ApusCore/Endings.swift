extension ErrorCode {
    /// What an error ends permanently: the client does not try again by itself.
    public enum Ending: String, Sendable, Hashable, CaseIterable {
        /// The session, as soon as one node reports it.
        case session
        /// The session, once two different nodes reported it, or every node that the client knows.
        case sessionByTwoNodes = "session, by two nodes"
        /// A stream that is being played.
        case playing
        /// A stream that is being published.
        case publishing
    }

    /// One row of ``endings``.
    public struct EndingRule: Sendable {
        public let code: ErrorCode
        public let ending: Ending
        /// Why the error is permanent.
        public let reason: String

        fileprivate init(_ code: ErrorCode, _ ending: Ending, _ reason: String) {
            self.code = code
            self.ending = ending
            self.reason = reason
        }
    }

    /// Every error that ends something permanently (IV-A5, IV-A7). After any other error the client tries again.
    /// docs/operating.md has the same table.
    public static let endings: [EndingRule] = [
        EndingRule(.kicked, .session, "the identity's owner admitted a newer client"),
        EndingRule(.notAllowed, .session, "the signed token names another role"),
        EndingRule(.tokenInvalid, .sessionByTwoNodes, "one node's clock or key may be wrong, two agree on the token"),
        EndingRule(.tokenExpired, .sessionByTwoNodes, "one node's clock may be ahead, two agree on the time"),
        EndingRule(.targetUnknown, .playing, "no device of that id was ever recorded"),
        EndingRule(.illegalRelation, .playing, "the device is recorded under another account"),
        EndingRule(.notAllowed, .playing, "the signed token does not name the device"),
        EndingRule(.badParameter, .playing, "the request is the same at every node"),
        EndingRule(.connectionExists, .playing, "the session plays the channel already"),
        EndingRule(.deviceDisabled, .playing, "an operator has disabled the device"),
        EndingRule(.notAllowed, .publishing, "the signed token is not a device's"),
        EndingRule(.badParameter, .publishing, "the request is the same at every node"),
        EndingRule(.callUnknown, .playing, "the call is over"),
        EndingRule(.answeredByOthers, .playing, "another client has accepted the call"),
        EndingRule(.callUnknown, .publishing, "the call is over"),
        EndingRule(.answeredByOthers, .publishing, "another client has accepted the call"),
        EndingRule(.illegalRelation, .publishing, "the client has no part in the call, or has lost its right to it"),
        EndingRule(.deviceDisabled, .publishing, "a device of the call was disabled"),
        EndingRule(.callParametersInvalid, .publishing, "nobody has accepted the call yet"),
        EndingRule(.callParametersInvalid, .playing, "nobody has accepted the call yet"),
    ]

    /// True if the error permanently ends this.
    public func ends(_ ending: Ending) -> Bool {
        Self.endings.contains { $0.code == self && $0.ending == ending }
    }
}
