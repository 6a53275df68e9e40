// The requests of the cluster itself. Services add their own where their messages are (CONTRIBUTING.md).

extension ClientSubscribeRequest: ClientRequestMessage {
    public typealias Reply = ClientSubscribeResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            5, "topics.subscribe", roles: .all, isForNamedDevices: true,
            "Subscribe to the events of a topic on this connection.")
    }
}

extension ClientUnsubscribeRequest: ClientRequestMessage {
    public typealias Reply = ClientUnsubscribeResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            6, "topics.unsubscribe", roles: .all, isForNamedDevices: true, "End the subscription to a topic.")
    }
}

extension ClientSleepRequest: ClientRequestMessage {
    public typealias Reply = ClientSleepResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(7, "devices.sleep", roles: .device, "Say that this device goes to sleep, or wakes.")
    }
}

extension ClientRelayCredentialsRequest: ClientRequestMessage {
    public typealias Reply = ClientRelayCredentialsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            8, "relay.credentials", .post("/v1/relay/credentials"), alias: .get("/v1/relay/credentials"),
            roles: [.device, .app], isForNamedDevices: true, "Get credentials of the cluster's relays for a time.")
    }
}

extension ClientAcknowledgeRequest: ClientRequestMessage {
    public typealias Reply = ClientAcknowledgeResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            9, "topics.acknowledge", roles: .all, isForNamedDevices: true,
            "Acknowledge all events of a topic up to a cursor.")
    }
}

// MARK: - Devices

extension ClientListDevicesRequest: ClientRequestMessage {
    public typealias Reply = ClientListDevicesResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            20, "devices.list", .get("/v1/devices"), roles: [.app, .customer, .admin], isForNamedDevices: true,
            fields: ["account": .optionalIdentifier, "page_token": .optionalIdentifier],
            "List the devices of an account.")
    }
}

extension ClientGetDeviceRequest: ClientRequestMessage {
    public typealias Reply = ClientDevice
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            21, "devices.get", .get("/v1/devices/{device}"), roles: [.app, .customer, .admin], isForNamedDevices: true,
            fields: ["device": .identifier],
            "Get a device.")
    }
}

extension ClientGetPresenceRequest: ClientRequestMessage {
    public typealias Reply = ClientPresence
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            22, "presence.get", .get("/v1/devices/{device}/presence"), roles: .app, isForNamedDevices: true,
            fields: ["device": .identifier],
            "Get whether a device is online, offline or asleep.")
    }
}

// MARK: - Operators

extension ClientIssueTokenRequest: ClientRequestMessage {
    public typealias Reply = ClientIssueTokenResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            30, "tokens.issue", .post("/v1/tokens"), roles: .admin, isIdempotent: false, isAudited: true,
            fields: [
                "role": FieldRule(pattern: "^(device|app|admin)$", isRequired: true), "account": .identifier,
                "access": .optionalIdentifier, "devices": FieldRule(pattern: "^[A-Za-z0-9._-]{1,63}$"),
                "lifetime_seconds": .seconds, "id": FieldRule(pattern: "^[\\x21-\\x7e]{0,255}$"),
            ],
            oneOf: [
                RequestShape(["role": FieldRule(pattern: "^device$"), "devices": FieldRule(itemCount: 1...1)]),
                RequestShape(["role": FieldRule(pattern: "^(app|admin)$")]),
            ],
            "Sign a token for a device, an app or an operator.")
    }
}

extension ClientRevokeTokensRequest: ClientRequestMessage {
    public typealias Reply = ClientRevokeTokensResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            31, "tokens.revoke", .post("/v1/tokens/revoke"), roles: .admin, isAudited: true,
            fields: [
                "token_id": FieldRule(pattern: "^.{1,255}$"), "identity": FieldRule(pattern: "^[A-Za-z0-9._-]{1,63}$"),
                "account": FieldRule(pattern: "^[A-Za-z0-9._-]{1,63}$"), "before": .unixSeconds,
                "keep_seconds": .seconds,
            ],
            oneOf: [
                RequestShape(["token_id": FieldRule()], absent: ["identity", "all"]),
                RequestShape(["identity": FieldRule(), "account": FieldRule()], absent: ["token_id", "all"]),
                RequestShape(["account": FieldRule()], flags: ["all"], absent: ["token_id", "identity"]),
            ],
            "Revoke a token, an identity's tokens, or those of a whole account.")
    }
}

extension ClientListNodesRequest: ClientRequestMessage {
    public typealias Reply = ClientListNodesResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(32, "nodes.list", .get("/v1/nodes"), roles: .admin, "List the nodes of the cluster.")
    }
}

extension ClientDrainNodeRequest: ClientRequestMessage {
    public typealias Reply = ClientDrainNodeResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            33, "nodes.drain", .post("/v1/nodes/{node}/drain"), roles: .admin, isAudited: true,
            fields: ["node": .identifier],
            "Move a node's shards and clients to the other nodes.")
    }
}

extension ClientListShardsRequest: ClientRequestMessage {
    public typealias Reply = ClientListShardsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            34, "shards.list", .get("/v1/shards"), roles: .admin,
            fields: ["owner": .optionalIdentifier, "page_token": FieldRule(pattern: "^[0-9]{0,4}$")],
            "List shards with their owners and standbys.")
    }
}

extension ClientCordonNodeRequest: ClientRequestMessage {
    public typealias Reply = ClientCordonNodeResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            38, "nodes.cordon", .post("/v1/nodes/{node}/cordon"), roles: .admin, isAudited: true,
            fields: ["node": .identifier],
            "Give a node no new shards. It keeps those that it has.")
    }
}

extension ClientUncordonNodeRequest: ClientRequestMessage {
    public typealias Reply = ClientUncordonNodeResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            39, "nodes.uncordon", .post("/v1/nodes/{node}/uncordon"), roles: .admin, isAudited: true,
            fields: ["node": .identifier],
            "Give a cordoned node shards again.")
    }
}

extension ClientSetNodeWeightRequest: ClientRequestMessage {
    public typealias Reply = ClientSetNodeWeightResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            40, "nodes.weight", .post("/v1/nodes/{node}/weight"), roles: .admin, isAudited: true,
            fields: ["node": .identifier, "weight": FieldRule(range: 1...10_000, isRequired: true)],
            "Change a node's share of the shards until it starts again.")
    }
}

extension ClientExplainShardRequest: ClientRequestMessage {
    public typealias Reply = ClientExplainShardResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            41, "shards.explain", .get("/v1/shards/{shard}"), alias: .get("/v1/devices/{device}/shard"), roles: .admin,
            fields: [
                "shard": FieldRule(pattern: "^([0-9]{1,3}|[1-3][0-9]{3}|40[0-8][0-9]|409[0-5])?$"),
                "device": .optionalIdentifier,
            ],
            "Say who has a shard, or a device's shard, since when, and what moved it.")
    }
}

extension ClientListMapChangesRequest: ClientRequestMessage {
    public typealias Reply = ClientListMapChangesResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            42, "map.changes", .get("/v1/map/changes"), roles: .admin,
            "List the recorded changes of the cluster map, the newest first.")
    }
}

extension ClientUndrainNodeRequest: ClientRequestMessage {
    public typealias Reply = ClientUndrainNodeResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            43, "nodes.undrain", .post("/v1/nodes/{node}/undrain"), roles: .admin, isAudited: true,
            fields: ["node": .identifier],
            "Give a drained node shards again.")
    }
}

extension ClientListSessionsRequest: ClientRequestMessage {
    public typealias Reply = ClientListSessionsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            35, "sessions.list", .get("/v1/sessions"), roles: .admin,
            fields: ["node": .optionalIdentifier, "account": .optionalIdentifier],
            "List the sessions of a node, or of all nodes.")
    }
}

extension ClientEndSessionRequest: ClientRequestMessage {
    public typealias Reply = ClientEndSessionResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            36, "sessions.end", .delete("/v1/sessions/{session}"), roles: .admin, isAudited: true,
            fields: ["session": .identifier, "node": .optionalIdentifier],
            "End a session. Its client may sign in again; revoke its token to keep it out.")
    }
}

extension ClientListChannelsRequest: ClientRequestMessage {
    public typealias Reply = ClientListChannelsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            37, "channels.list", .get("/v1/channels"), roles: .admin, fields: ["node": .optionalIdentifier],
            "List the media channels of a node, or of all nodes, with their viewers.")
    }
}

// MARK: - Events

extension ClientPresence: ClientEventMessage {
    public static var info: ClientEventInfo {
        ClientEventInfo(1, "presence", "A device went online, offline or to sleep.")
    }
}
