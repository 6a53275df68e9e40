extension ErrorCode {
    /// The name in the sources and in the reference, such as `badParameter`; `error` with the number if the number is
    /// not in the catalogue.
    package var name: String { Self.explanations.first { $0.code == self }?.name ?? "error\(number)" }

    /// What the reference says of an error beside its number and its sentence.
    package struct Explanation: Sendable {
        /// Who receives the error.
        package enum Receiver: String, Sendable {
            /// A device or an app, over the network.
            case client
            /// The program that uses the SDK: the error arises in the client itself.
            case sdk = "SDK"
            /// Another node.
            case node
            /// Who runs nodes and commands.
            case `operator`
            /// The contract reserves the number, and nothing returns it.
            case nobody
        }

        package let code: ErrorCode
        /// The name in the sources: the constant of ``ErrorCode``.
        package let name: String
        package let receivers: [Receiver]
        /// What the receiver should do.
        package let action: String

        fileprivate init(_ code: ErrorCode, _ name: String, _ receivers: [Receiver], _ action: String) {
            self.code = code
            self.name = name
            self.receivers = receivers
            self.action = action
        }
    }

    /// Every error, in the order of ``all``. docs/reference/errors.md is made from this table, and a tidy test compares
    /// it with the constants.
    package static let explanations: [Explanation] =
        callErrors + contractErrors + generalErrors + userErrors + deviceErrors + sdkErrors

    /// How a call ends, and what a request of a call is refused with.
    private static let callErrors: [Explanation] = [
        Explanation(
            .enteredBackground, "enteredBackground", [.client],
            "Call again from the foreground. The other leg receives −2533."),
        Explanation(
            .networkChanged, "networkChanged", [.client],
            "Call again on the new network. The other leg receives −2533."),
        Explanation(
            .remoteStopped, "remoteStopped", [.client],
            "Show that the other leg has ended the call. Call again if it is still needed."),
        Explanation(
            .mediaDisconnected, "mediaDisconnected", [.client],
            "Check the network of both legs, and call again: a leg that was away did not return in time."),
        Explanation(
            .mediaConnectFailed, "mediaConnectFailed", [.client],
            "Check that both legs reach a node or the relay, and call again."),
        Explanation(
            .callTimedOut, "callTimedOut", [.client],
            "Stop ringing: the call was not answered in time. An accepted call has reached its longest duration."),
        Explanation(.callCancelled, "callCancelled", [.client], "Stop ringing, and show a missed call."),
        Explanation(
            .answeredByOthers, "answeredByOthers", [.client], "Stop ringing: the call goes on without this leg."),
        Explanation(.rejectedByOthers, "rejectedByOthers", [.client], "Stop ringing: the call is over."),
        Explanation(
            .onCalling, "onCalling", [.client],
            "Do not ring: a party is on one call at a time. To call, end the present call first."),
        Explanation(.peerHungUp, "peerHungUp", [.client], "Nothing is to be done: the call ended normally."),
        Explanation(.callNotAnswered, "callNotAnswered", [.client], "Call again later."),
        Explanation(.calleeBusy, "calleeBusy", [.client], "Call again later: the called party is on another call."),
        Explanation(.callRejected, "callRejected", [.client], "Do not call again at once."),
        Explanation(
            .callUnknown, "callUnknown", [.client],
            "Do not ring: the session id is wrong, or the call ended some time ago."),
        Explanation(
            .callInterfaceMissing, "callInterfaceMissing", [.sdk],
            "Register a manager with the `bizType` of the call before calls are placed or taken."),
        Explanation(
            .callDataInvalid, "callDataInvalid", [.sdk],
            "Pass on only the notifications of calls: `link`, `ts` and `voipEnable`, in JSON."),
        Explanation(
            .callResponseInvalid, "callResponseInvalid", [.sdk],
            "Correct what the device reports as `ProReadonly._twoWayVideo`: 0 or 1."),
        Explanation(
            .callRequestFailed, "callRequestFailed", [.client], "Check the ids of the called devices."),
        Explanation(
            .callParametersInvalid, "callParametersInvalid", [.client],
            "Do not retry: correct the parameter that the message names."),
    ]

    private static let contractErrors: [Explanation] = [
        Explanation(
            .targetOffline, "targetOffline", [.client],
            "Send the command again when the device is online, or with a time to live, for which it is kept."),
        Explanation(
            .targetUnknown, "targetUnknown", [.client, .operator],
            "Check the id. A device is unknown until it has connected for the first time."),
        Explanation(
            .illegalRelation, "illegalRelation", [.client], "Use a token of the account that the device belongs to."),
        Explanation(
            .boundToThisUser, "boundToThisUser", [.client],
            "Nothing is to be done: the device has this account already."
        ),
        Explanation(
            .boundToOtherUser, "boundToOtherUser", [.client],
            "Use a token of the account that the device is bound to."),
        Explanation(
            .otherCustomer, "otherCustomer", [.client],
            "Use a device and a user of one customer. An operator assigns devices to customers."),
        Explanation(
            .userPropertyName, "userPropertyName", [.client],
            "Choose another name: those that begin with `_` are built in, and cannot be added or deleted."),
    ]

    private static let generalErrors: [Explanation] = [
        Explanation(
            .malformed, "malformed", [.client, .node],
            "Do not retry: fix the sender. The connection may be closed."),
        Explanation(
            .frameTooLarge, "frameTooLarge", [.client, .node],
            "Send less, or raise the limit that the message names, such as `gateway.device_frame_bytes_max`."),
        Explanation(
            .versionUnsupported, "versionUnsupported", [.client, .node], "Update the older side."),
        Explanation(
            .methodUnknown, "methodUnknown", [.client, .node],
            "Do not retry at this node: it runs a release without this request."),
        Explanation(
            .deadlineExceeded, "deadlineExceeded", [.client, .node, .operator],
            "Retry a request that may be repeated: it may have been carried out."),
        Explanation(.cancelled, "cancelled", [.client, .node], "None: the caller cancelled the request."),
        Explanation(
            .overloaded, "overloaded", [.client, .node, .operator],
            "Retry later, with growing and jittered delays."),
        Explanation(
            .linkLost, "linkLost", [.client, .node, .sdk],
            "Retry a request that may be repeated: it may have been carried out. The SDK reconnects by itself."),
        Explanation(.moved, "moved", [.node], "Ask the owner that the answer names. Clients do not see this error."),
        Explanation(
            .noRoute, "noRoute", [.client, .node],
            "Retry. If it lasts, check with `apus cluster status` that every shard has an owner, and that its owner "
                + "hears most of the other nodes."),
        Explanation(
            .wrongCluster, "wrongCluster", [.node, .operator],
            "Correct the address or the key `cluster`: the nodes belong to different clusters."),
        Explanation(
            .noOwnership, "noOwnership", [.node, .operator],
            "Make the ownership store readable again. Until then no shard moves; sessions and channels continue."),
        Explanation(
            .staleEpoch, "staleEpoch", [.node],
            "Discard the change and read the newest map: another node owns the shard under a higher term."),
        Explanation(
            .handshakeTimeout, "handshakeTimeout", [.client, .node],
            "Reconnect. If it repeats, check the network, or raise `gateway.handshake_timeout`."),
        Explanation(
            .idleTimeout, "idleTimeout", [.client, .node],
            "Reconnect. If it repeats, send keepalives more often, or raise `gateway.idle_timeout`."),
        Explanation(
            .slowReader, "slowReader", [.client],
            "Reconnect, and play fewer streams or at a lower rate: the client does not read what it requested."),
        Explanation(
            .shuttingDown, "shuttingDown", [.client, .node],
            "Connect to another node. The SDK does so by itself."),
        Explanation(
            .internalFailure, "internalFailure", [.client, .node, .operator],
            "Read the node's log, and report the error if the log does not explain it. A retry may succeed."),
        Explanation(
            .addressInUse, "addressInUse", [.operator],
            "Stop the program that uses the port, or choose another address."),
        Explanation(
            .stateForeign, "stateForeign", [.operator, .node],
            "Use the directory or store that belongs to this cluster and node. For the ownership store, run "
                + "`apus admin ownership restore`."),
        Explanation(
            .storageFailed, "storageFailed", [.client, .node, .operator],
            "Check disk space, permissions and the path. A client retries: nothing is known to be durable."),
        Explanation(
            .configurationInvalid, "configurationInvalid", [.operator],
            "Correct the key that the message names; [configuration.md](configuration.md) lists all keys."),
        Explanation(
            .tooManyStreams, "tooManyStreams", [.client],
            "Close a stream, open a second connection, or raise `gateway.streams_per_connection_max`."),
        Explanation(
            .stalePublisher, "stalePublisher", [.client],
            "Publish again under a higher publisher epoch. The SDK does so by itself."),
        Explanation(
            .fenced, "fenced", [.node, .operator],
            "None: the node was declared dead and restarts as a new incarnation by itself."),
        Explanation(
            .mediaUnreadable, "mediaUnreadable", [.sdk],
            "Use a file, stream or codec that the machine's libavcodec supports; the message names the problem."),
        Explanation(
            .versionConflict, "versionConflict", [.client, .node, .operator],
            "Read the record again, apply the change to it, and retry."),
        Explanation(
            .certificateRevoked, "certificateRevoked", [.node, .operator],
            "Issue a new certificate for the node and reload it, if the node is still trusted; otherwise stop the node."
        ),
        Explanation(
            .notSynchronized, "notSynchronized", [.client],
            "Send `dialogs.synchronize` once after each connection, and then the event again."),
        Explanation(
            .storageFull, "storageFull", [.client, .operator],
            "Make room on the disk or in the bucket that the message names, or raise its quota."),
    ]

    private static let userErrors: [Explanation] = [
        Explanation(
            .tokenInvalid, "tokenInvalid", [.client, .operator],
            "Request a new token: this one is malformed, signed with another key, or revoked."),
        Explanation(
            .tokenExpired, "tokenExpired", [.client, .operator], "Request a new token, and check the clocks."),
        Explanation(
            .kicked, "kicked", [.client],
            "Do not reconnect: a newer client of the same identity took its place."),
        Explanation(
            .notAllowed, "notAllowed", [.client, .node, .operator],
            "Use a token whose role and claims allow the request."),
    ]

    private static let deviceErrors: [Explanation] = [
        Explanation(
            .peerTimedOut, "peerTimedOut", [.client],
            "Ask the device whether it has carried out the command, before you send it again under another id."),
        Explanation(
            .hungUp, "hungUp", [.client],
            "Nothing is to be done: the connection ended normally. Open another one if it is still needed."),
        Explanation(
            .openingTimedOut, "openingTimedOut", [.sdk],
            "Try again later: the device is connected, and did not answer in time."),
        Explanation(
            .noRelayAddress, "noRelayAddress", [.client],
            "Retry later, or connect without a relay. The operator can give a node a relay with `relay.enabled`."),
        Explanation(
            .peerHandshakeTimedOut, "peerHandshakeTimedOut", [.sdk],
            "Check that the address is the device's, and that the network passes TLS; or go through the cluster."),
        Explanation(
            .deviceTokenRefused, "deviceTokenRefused", [.client, .sdk],
            "Ask for access again, through the cluster: this one was granted to another client, or is over."),
        Explanation(
            .deviceChannelsFull, "deviceChannelsFull", [.client],
            "Try again later, or end a playback: the device plays no more recordings at a time."),
        Explanation(
            .connectionIdle, "connectionIdle", [.client],
            "Open the playback again: the device heard nothing of its player for too long."),
        Explanation(
            .destinationUnknown, "destinationUnknown", [.client],
            "Open the playback again: the device has restarted, or never had it."),
        Explanation(
            .tokenRefused, "tokenRefused", [.sdk],
            "Sign in with a new token: the message has the number that the cluster gave, 12001, 12002 or 12004."),
        Explanation(
            .deviceDisabled, "deviceDisabled", [.client, .operator],
            "Ask the integrator or the operator of the cluster, who can enable the device again."),
        Explanation(
            .duplicateConnection, "duplicateConnection", [.client],
            "Open the playback under another id: another client uses this one."),
        Explanation(.deviceBusy, "deviceBusy", [.client], "Retry later: the device has too much to do."),
        Explanation(
            .pathIllegal, "pathIllegal", [.client],
            "Do not retry: correct the path as [things.md](../things.md) describes paths."),
        Explanation(
            .jsonInvalid, "jsonInvalid", [.client],
            "Do not retry: send JSON of the shape that the message names, within its limits."),
        Explanation(
            .actionFailed, "actionFailed", [.client],
            "Read the message: the device has tried, or has restarted while it carried out the action."),
        Explanation(
            .actionUnknown, "actionUnknown", [.client],
            "Correct the path, or update the device: its program does not know this action."),
        Explanation(
            .builtInSetting, "builtInSetting", [.client],
            "Do not retry: change a setting whose name begins with `_` through the cluster."),
    ]

    private static let sdkErrors: [Explanation] = [
        Explanation(
            .duplicateMessage, "duplicateMessage", [.client, .sdk],
            "Wait for the answer to the first message. For another command, use another id."),
        Explanation(
            .sendFailed, "sendFailed", [.sdk],
            "Retry what may be repeated: the connections broke before the answer, so it may have been carried out."),
        Explanation(
            .answerTimedOut, "answerTimedOut", [.sdk, .operator],
            "Retry a request that may be repeated: it may have been carried out."),
        Explanation(
            .propertyUnknown, "propertyUnknown", [.client],
            "Check the path. A state or a setting exists once its device has reported it."),
        Explanation(
            .modelUnreadable, "modelUnreadable", [.sdk],
            "Read it as another type: the message names the path and what is there."),
        Explanation(
            .passToServerFailed, "passToServerFailed", [.client],
            "Check the name of the server, and the endpoint of its hook: `apus hooks` shows it."),
        Explanation(
            .passToDeviceFailed, "passToDeviceFailed", [.client],
            "Read the message: the device has refused the data."),
        Explanation(
            .callbackUnknown, "callbackUnknown", [.client], "Update the device: its program takes no data."),
        Explanation(
            .messageTooLarge, "messageTooLarge", [.client, .sdk],
            "Send less, or several messages: one has at most 30,000 bytes."),
        Explanation(
            .tooManyConnections, "tooManyConnections", [.client],
            "Connect to another node. The operator can raise `gateway.connections_max`."),
        Explanation(
            .connectionExists, "connectionExists", [.client],
            "Use the player that this session has of the channel, or stop it first."),
        Explanation(
            .connectFailed, "connectFailed", [.sdk, .operator],
            "Check the address, the network and the certificate authority. The SDK tries the other nodes by itself."),
        Explanation(.notConnected, "notConnected", [.sdk], "Wait until the session is connected, and retry."),
        Explanation(
            .packageTooLarge, "packageTooLarge", [.sdk],
            "Send smaller frames: one has at most 8 MiB. Lower the bit rate or the size of the pictures."),
        Explanation(
            .unavailable, "unavailable", [.client, .operator],
            "Retry later, or at a node that provides the service, such as one with a relay."),
        Explanation(
            .notImplemented, "notImplemented", [.client, .sdk],
            "Do not retry: the program of the device does not offer this, such as recordings."),
        Explanation(
            .badParameter, "badParameter", [.client, .operator],
            "Do not retry: correct the parameter that the message names."),
        Explanation(
            .recordingListEmpty, "recordingListEmpty", [.client, .sdk],
            "Choose another time: nothing was recorded then, or it was removed."),
        Explanation(
            .recordingListInvalid, "recordingListInvalid", [.sdk],
            "Update the device: its list of recordings is not one."),
        Explanation(
            .alreadyRecording, "alreadyRecording", [.sdk],
            "Stop the recording before another one is started."),
        Explanation(
            .pictureSizeChanged, "pictureSizeChanged", [.sdk],
            "Write the pictures to another file from now on: this one has a fixed size."),
        Explanation(
            .encoderUnavailable, "encoderUnavailable", [.sdk],
            "Use another codec, install what the error names, or set an encoder of your own."),
        Explanation(
            .recordingListVersion, "recordingListVersion", [.sdk],
            "Update the app: the device has a newer list of recordings."),
    ]
}
