/// An error of the cluster, with its number from the catalogue (requirements IV-F).
///
/// Every refusal that a device, an app or another node can see has a number. Callers decide by ``code``; ``message`` is
/// for people.
public struct ApusError: Error, Sendable, Equatable, CustomStringConvertible {
    public let code: ErrorCode
    /// A message for people: what is wrong and, where it helps, what to do. It never contains secrets.
    public let message: String

    public init(_ code: ErrorCode, _ message: String? = nil) {
        self.code = code
        self.message = message ?? code.summary
    }

    public var description: String { "\(message) (\(code.number))" }

    public static func == (left: Self, right: Self) -> Bool { left.code == right.code }
}

/// A number of the error catalogue.
///
/// Families, from the contract: −2599 to −2500 calls (CALL-15), 8000–8499 access server, 8500–8699 control server,
/// 10000–10999 general, 12000–12999 user, 20000–20999 peer to peer, 21000–21999 SDK. Numbers that the contract
/// names keep their meaning; 10000–10999 are this project's own. A retired number stays reserved.
public struct ErrorCode: Sendable, Hashable, CustomStringConvertible {
    public let number: Int32
    public let summary: String

    private init(_ number: Int32, _ summary: String) {
        self.number = number
        self.summary = summary
    }

    public var description: String { "\(number)" }
    public static func == (left: Self, right: Self) -> Bool { left.number == right.number }
    public func hash(into hasher: inout Hasher) { hasher.combine(number) }

    // Calls.
    public static let enteredBackground = Self(-2571, "the app of a leg went to the background")
    public static let networkChanged = Self(-2570, "the network of a leg changed")
    public static let remoteStopped = Self(-2533, "the other leg stopped its media")
    public static let mediaDisconnected = Self(-2532, "the connection of a leg was lost")
    public static let mediaConnectFailed = Self(-2531, "the media of the call did not connect")
    public static let callTimedOut = Self(-2530, "the time of the call is over")
    public static let callCancelled = Self(-2523, "the caller cancelled the call")
    public static let answeredByOthers = Self(-2522, "another one answered the call")
    public static let rejectedByOthers = Self(-2521, "another one rejected the call")
    public static let onCalling = Self(-2520, "this party is on another call")
    public static let peerHungUp = Self(-2513, "the other leg hung up")
    public static let callNotAnswered = Self(-2512, "nobody answered the call")
    public static let calleeBusy = Self(-2511, "the called party is busy")
    public static let callRejected = Self(-2510, "the called party rejected the call")
    public static let callUnknown = Self(-2508, "there is no call of this session id")
    public static let callInterfaceMissing = Self(-2504, "no interface is registered for calls of this kind")
    public static let callDataInvalid = Self(-2503, "the notification is not one of a call")
    public static let callResponseInvalid = Self(-2502, "the answer about calls cannot be read")
    public static let callRequestFailed = Self(-2501, "the call cannot be placed: there is no such target")
    public static let callParametersInvalid = Self(-2500, "a parameter of the call is not valid")

    // Access server.
    public static let targetOffline = Self(8000, "the target is offline")
    public static let targetUnknown = Self(8002, "the target does not exist")
    public static let illegalRelation = Self(8003, "the target is not bound to this account")
    public static let boundToThisUser = Self(8022, "the device is already bound to this user")
    public static let boundToOtherUser = Self(8023, "the device is bound to another user")
    public static let otherCustomer = Self(8024, "the device's customer is not the user's customer")

    // Control server.
    public static let userPropertyName = Self(8605, "the name of a user property begins with _")

    // General: this project's own.
    public static let malformed = Self(10_001, "the message cannot be decoded")
    public static let frameTooLarge = Self(10_002, "the frame exceeds the size limit")
    public static let versionUnsupported = Self(
        10_003, "the peer's protocol version is not supported")
    public static let methodUnknown = Self(10_004, "the method is unknown")
    public static let deadlineExceeded = Self(10_005, "no answer came before the deadline")
    public static let cancelled = Self(10_006, "the call was cancelled")
    public static let overloaded = Self(10_007, "a limit is reached; try again later")
    public static let linkLost = Self(10_008, "the link to the peer was lost")
    public static let moved = Self(10_009, "the shard has another owner")
    public static let noRoute = Self(10_010, "no node can be reached")
    public static let wrongCluster = Self(10_011, "the peer belongs to another cluster")
    public static let noOwnership = Self(10_012, "the ownership store cannot be reached; nothing is decided")
    public static let staleEpoch = Self(10_013, "the epoch is older than one already seen")
    public static let handshakeTimeout = Self(10_014, "the handshake did not complete in time")
    public static let idleTimeout = Self(10_015, "nothing was received for too long")
    public static let slowReader = Self(10_016, "the reader does not keep up")
    public static let shuttingDown = Self(10_017, "this node is leaving; connect to another")
    public static let internalFailure = Self(10_018, "an internal error; the node's log says more")
    public static let addressInUse = Self(10_019, "the address is in use")
    public static let stateForeign = Self(10_020, "the state directory belongs to something else")
    public static let storageFailed = Self(10_021, "the storage cannot be read or written")
    public static let configurationInvalid = Self(10_022, "the configuration is not valid")
    public static let tooManyStreams = Self(10_023, "too many streams on one connection")
    public static let stalePublisher = Self(10_024, "a newer publisher holds this channel")
    public static let fenced = Self(10_025, "this node was declared dead and starts again")
    public static let mediaUnreadable = Self(10_026, "the media cannot be decoded")
    // 10028 is retired: it was for entities that waited for one another.
    public static let versionConflict = Self(10_030, "the record does not have the expected version")
    public static let certificateRevoked = Self(10_032, "the node's certificate is revoked")
    public static let notSynchronized = Self(10_040, "the device has not synchronized its dialog since it connected")
    public static let storageFull = Self(10_041, "the storage is full")

    // User.
    public static let tokenInvalid = Self(12_001, "the token is not valid")
    public static let tokenExpired = Self(12_002, "the token has expired")
    public static let kicked = Self(12_003, "the same identity registered elsewhere")
    public static let notAllowed = Self(12_004, "the token does not allow this")

    // Devices.
    public static let peerTimedOut = Self(20_001, "the message to the peer timed out")
    public static let hungUp = Self(20_002, "the connection to the device was ended")
    public static let openingTimedOut = Self(20_003, "the device did not answer the request for a connection")
    public static let noRelayAddress = Self(20_004, "no relay takes clients")
    public static let peerHandshakeTimedOut = Self(20_005, "the handshake with the device timed out")
    public static let deviceTokenRefused = Self(20_006, "the device refuses the access")
    public static let deviceChannelsFull = Self(20_007, "all channels of the device are in use")
    public static let connectionIdle = Self(20_008, "the connection was idle for too long")
    public static let destinationUnknown = Self(20_009, "the device has no connection of this id")
    public static let tokenRefused = Self(20_010, "the cluster refuses the token")
    public static let deviceDisabled = Self(20_011, "the device is disabled")
    public static let duplicateConnection = Self(20_012, "another client has a connection of this id")
    public static let deviceBusy = Self(20_100, "the device is busy")
    public static let pathIllegal = Self(20_101, "the path of a property is not legal")
    public static let jsonInvalid = Self(20_102, "the JSON of a property cannot be read")

    public static let actionFailed = Self(20_103, "the action failed")
    public static let actionUnknown = Self(20_104, "the device has no callback for this action")
    public static let builtInSetting = Self(20_105, "a built-in setting cannot be changed over the local network")

    // SDK.
    public static let duplicateMessage = Self(21_000, "the same message is in progress")
    public static let sendFailed = Self(21_001, "the message could not be sent")
    public static let answerTimedOut = Self(21_002, "the answer timed out")
    public static let propertyUnknown = Self(21_003, "the model has no such property")
    public static let modelUnreadable = Self(21_004, "the part of the model cannot be read as that type")
    public static let passToServerFailed = Self(21_005, "the server failed to take the data")
    public static let passToDeviceFailed = Self(21_006, "the device failed to take the data")
    public static let callbackUnknown = Self(21_007, "the device has no callback for data")
    public static let messageTooLarge = Self(21_008, "the message exceeds the size limit")
    public static let tooManyConnections = Self(21_020, "too many connections")
    public static let connectionExists = Self(21_021, "there is such a connection already")
    public static let connectFailed = Self(21_022, "the connection failed")
    public static let notConnected = Self(21_023, "not connected")
    public static let packageTooLarge = Self(21_024, "the frame of a track exceeds the size limit")
    public static let unavailable = Self(21_025, "not available now: offline")
    public static let notImplemented = Self(21_030, "the device does not implement this")
    public static let badParameter = Self(21_031, "a parameter is out of range")
    public static let recordingListEmpty = Self(21_032, "the device has no recordings of this time")
    public static let recordingListInvalid = Self(21_033, "the device's list of recordings cannot be read")
    public static let alreadyRecording = Self(21_034, "a recording is in progress already")
    public static let pictureSizeChanged = Self(21_035, "the size of the video has changed")
    public static let encoderUnavailable = Self(21_036, "the encoder is not available")
    public static let recordingListVersion = Self(21_037, "the version of the list of recordings is not supported")

    /// All numbers, in order.
    public static let all: [ErrorCode] = [
        enteredBackground, networkChanged, remoteStopped, mediaDisconnected, mediaConnectFailed, callTimedOut,
        callCancelled, answeredByOthers, rejectedByOthers, onCalling, peerHungUp, callNotAnswered, calleeBusy,
        callRejected, callUnknown, callInterfaceMissing, callDataInvalid, callResponseInvalid, callRequestFailed,
        callParametersInvalid,
        targetOffline, targetUnknown, illegalRelation, boundToThisUser, boundToOtherUser, otherCustomer,
        userPropertyName,
        malformed, frameTooLarge, versionUnsupported, methodUnknown, deadlineExceeded, cancelled, overloaded, linkLost,
        moved, noRoute, wrongCluster, noOwnership, staleEpoch, handshakeTimeout, idleTimeout, slowReader, shuttingDown,
        internalFailure, addressInUse, stateForeign, storageFailed, configurationInvalid, tooManyStreams,
        stalePublisher, fenced, mediaUnreadable, versionConflict, certificateRevoked, notSynchronized,
        storageFull,
        tokenInvalid, tokenExpired, kicked, notAllowed,
        peerTimedOut, hungUp, openingTimedOut, noRelayAddress, peerHandshakeTimedOut, deviceTokenRefused,
        deviceChannelsFull, connectionIdle, destinationUnknown, tokenRefused, deviceDisabled, duplicateConnection,
        deviceBusy, pathIllegal, jsonInvalid, actionFailed, actionUnknown, builtInSetting,
        duplicateMessage, sendFailed, answerTimedOut, propertyUnknown, modelUnreadable, passToServerFailed,
        passToDeviceFailed, callbackUnknown, messageTooLarge, tooManyConnections, connectionExists, connectFailed,
        notConnected, packageTooLarge, unavailable, notImplemented, badParameter, recordingListEmpty,
        recordingListInvalid, alreadyRecording, pictureSizeChanged, encoderUnavailable, recordingListVersion,
    ]

    private static let byNumber: [Int32: ErrorCode] = Dictionary(uniqueKeysWithValues: all.map { ($0.number, $0) })

    /// The catalogue's entry for a number from the wire. An unknown number is kept, so that an older reader preserves a
    /// newer node's error.
    public init(number: Int32) {
        self = Self.byNumber[number] ?? Self(number, "error \(number)")
    }
}
