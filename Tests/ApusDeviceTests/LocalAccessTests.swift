import ApusClient
import ApusCore
import ApusCrypto
import ApusDevice
import Foundation
import Testing

@Suite("What a device grants to apps in its network (IV-D14)")
struct LocalGrantsTests {
    private static let lamp = DeviceID(unchecked: "lamp")
    private static let secret = [UInt8](1...32)
    private static let owner = "1700000000 local/phone;access=phone;token=1.2"
    private let app = Curve25519.KeyAgreement.PrivateKey()

    private func grants(_ secret: [UInt8] = secret, _ device: DeviceID = lamp) throws -> LocalGrants {
        try LocalGrants(secret: secret, of: device)
    }

    private func granted(expires: Int64 = 1_000) throws -> (identity: String, key: Data) {
        try grants().grant(to: app.publicKey.rawRepresentation, owner: Self.owner, expires: expires)
    }

    @Test("App and device have the same key, also after a restart of the device with its secret")
    func agreement() throws {
        let (identity, key) = try granted()
        let own = try LocalKey.key(app, with: key, identity: identity, of: Self.lamp)
        #expect(own.count == 32)
        #expect(try grants().key(of: identity, at: 999, lifetime: 1_000) == own)
        // Whoever hears the identity, or has access to another device with it, has another key.
        let other = Curve25519.KeyAgreement.PrivateKey()
        #expect(try LocalKey.key(other, with: key, identity: identity, of: Self.lamp) != own)
        #expect(try LocalKey.key(app, with: key, identity: identity, of: DeviceID(unchecked: "door")) != own)
        // A pre-shared key's identity has at most 128 bytes.
        #expect(identity.utf8.count <= 128)
    }

    @Test("A device grants the identity and the keys that it granted in earlier releases (D3)")
    func earlier() throws {
        let app = try Curve25519.KeyAgreement.PrivateKey(rawRepresentation: [UInt8](50..<82))
        let granted = try grants().grant(to: app.publicKey.rawRepresentation, owner: "somebody", expires: 1000)
        let identity =
            """
            AQAAAAAAAAPocp19Y4zvG0dsmtHV0nXckeBbGuMiAkg4CV/979hlRo3bd7FLLdJ1F16gq0KU+m162ZeSBp+3AVfv0BkvLElRgxhy\
            hrk7F3wkXGkieY9wVtY=
            """
        #expect(granted.identity == identity)
        #expect(
            [UInt8](granted.key)
                == Hexadecimal.bytes("e3cf8e5783a34d310f9bb7c05fd56b4dcecbd52b50d7c0ce772b5b10e09e3963"))
        #expect(
            try LocalKey.key(app, with: granted.key, identity: identity, of: Self.lamp)
                == Hexadecimal.bytes("779424415b7203b174e9fda38e1e75f40188e3a5b79672dfd97451a2d9ccc445"))
    }

    @Test("An identity that has expired, was changed, or is of another device or secret has no key")
    func refused() throws {
        let identity = try granted().identity
        #expect(try grants().key(of: identity, at: 1_000, lifetime: 1_000) == nil)
        #expect(try grants([UInt8](2...33)).key(of: identity, at: 1, lifetime: 1_000) == nil)
        #expect(try grants(Self.secret, DeviceID(unchecked: "door")).key(of: identity, at: 1, lifetime: 1_000) == nil)
        let bytes = [UInt8](try #require(Data(base64Encoded: identity)))
        for index in bytes.indices {
            var changed = bytes
            changed[index] ^= 0x10
            #expect(
                try grants().key(of: Data(changed).base64EncodedString(), at: 1, lifetime: 1_000) == nil,
                "byte \(index)")
        }
        for text in ["", "x", String(identity.dropLast(4)), identity + identity, "\u{0}"] {
            #expect(try grants().key(of: text, at: 1, lifetime: 1_000) == nil)
        }
    }

    @Test("A clock that is set back by more than a lifetime makes nothing valid again")
    func clocks() throws {
        let identity = try granted(expires: 10_000).identity
        #expect(try grants().key(of: identity, at: 9_000, lifetime: 1_000) != nil)
        #expect(try grants().key(of: identity, at: 8_999, lifetime: 1_000) == nil)
        #expect(try grants().key(of: identity, at: 0, lifetime: 1_000) == nil)
    }

    @Test("An identity belongs to the client that asked for it")
    func owners() throws {
        let identity = try granted().identity
        #expect(try grants().isGranted(identity, to: Self.owner))
        #expect(try !grants().isGranted(identity, to: "1700000001 local/phone;access=phone;token=1.2"))
        #expect(try !grants().isGranted("", to: Self.owner))
    }

    @Test("A public key that is none is refused, and so is a secret of another length (21031, 10022)")
    func badKeys() throws {
        for key in [Data(), Data(repeating: 1, count: 31), Data(repeating: 0, count: 32)] {
            #expect(throws: ApusError.self) { try grants().grant(to: key, owner: Self.owner, expires: 1) }
        }
        #expect(throws: ApusError.self) { try grants([1, 2, 3]) }
    }
}

@Suite("What may be changed over the local network (IV-D4, IV-D14)")
struct LocalWriteTests {
    @Test("Both forms of a write have the same result")
    func forms() throws {
        for (path, json) in [("ProWritable.volume", #"{"setVal":3}"#), ("ProWritable.volume.setVal", "3")] {
            let (name, value) = try LocalWrite.setting(path, json)
            #expect(name == "volume" && value == "3")
        }
        #expect(
            try LocalWrite.setting("ProWritable.x", #"{"setVal":{"b":1,"a":[true,null]}}"#).json
                == #"{"a":[true,null],"b":1}"#)
        #expect(try LocalWrite.setting("ProWritable.x.setVal", #""text""#).json == #""text""#)
    }

    @Test(
        "Each other write has its number",
        arguments: [
            ("ProWritable._logLevel", #"{"setVal":3}"#, ErrorCode.builtInSetting),
            ("ProWritable._logLevel.setVal", "3", .builtInSetting),
            ("ProReadonly.battery.stVal", "3", .pathIllegal), ("Action.open", #"{"ctlVal":1}"#, .pathIllegal),
            ("ProUser.room.val", "1", .pathIllegal), ("prowritable.volume.setVal", "1", .pathIllegal),
            ("ProWritable", "1", .pathIllegal), ("ProWritable.", "1", .pathIllegal), ("", "1", .pathIllegal),
            ("ProWritable.volume.setVal.x", "1", .pathIllegal), ("ProWritable.volume.t", "1", .pathIllegal),
            ("ProWritable.volume", "3", .jsonInvalid), ("ProWritable.volume", "{", .jsonInvalid),
            ("ProWritable.volume", #"{"setVal":1,"t":2}"#, .jsonInvalid),
            ("ProWritable.volume.setVal", "", .jsonInvalid),
            ("ProWritable.volume.setVal", "1 2", .jsonInvalid),
            ("ProWritable.volume.setVal", String(repeating: "[", count: 10_000), .jsonInvalid),
            ("ProWritable.volume.setVal", "\"" + String(repeating: "x", count: 32_768) + "\"", .frameTooLarge),
        ])
    func refused(path: String, json: String, code: ErrorCode) {
        #expect {
            try LocalWrite.setting(path, json)
        } throws: {
            ($0 as? ApusError)?.code == code
        }
    }
}

@Suite("Files with secrets of local access (IV-D14)")
struct PrivateFileTests {
    @Test("A file is this user's alone; an existing one is not replaced, and a folder that is missing is an error")
    func create() throws {
        let folder = FileManager.default.temporaryDirectory.appendingPathComponent("private-\(UUID().uuidString)")
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(at: folder) }
        let path = folder.appendingPathComponent("secret").path
        #expect(PrivateFile.create(path, [1, 2, 3]))
        #expect(FileManager.default.contents(atPath: path) == Data([1, 2, 3]))
        #expect(try FileManager.default.attributesOfItem(atPath: path)[.posixPermissions] as? Int == 0o600)
        #expect(!PrivateFile.create(path, [4]))
        #expect(FileManager.default.contents(atPath: path) == Data([1, 2, 3]))
        #expect(!PrivateFile.create(folder.appendingPathComponent("missing/secret").path, [1]))
    }
}
