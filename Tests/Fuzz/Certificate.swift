import ApusCrypto
import CApusCrypto

/// D3: bytes of others are a certificate or key, or are refused. What is read is read again as the same, and no error
/// is left for libssl.
func fuzzCertificate(_ input: [UInt8]) {
    if let certificate = try? Certificate(derRepresentation: input) {
        precondition(!certificate.serial.isEmpty, "there is no serial number")
        precondition(certificate.derRepresentation == input, "it is another")
        _ = certificate.isSigned(by: certificate)
    }
    let text = String(decoding: input, as: UTF8.self)
    if let key = try? P256.Signing.PrivateKey(pemRepresentation: text) {
        let again = try? P256.Signing.PrivateKey(pemRepresentation: key.pemRepresentation)
        precondition(
            again?.pemRepresentation.utf8.elementsEqual(key.pemRepresentation.utf8) == true, "it is another key")
        guard let signature = try? key.signature(for: input) else { preconditionFailure("the key does not sign") }
        precondition(key.publicKey.isValidSignature(signature, for: input), "the key's signature is not valid")
    }
    if let key = try? P256.Signing.PublicKey(pemRepresentation: text) {
        let again = try? P256.Signing.PublicKey(pemRepresentation: key.pemRepresentation)
        precondition(
            again?.pemRepresentation.utf8.elementsEqual(key.pemRepresentation.utf8) == true, "it is another key")
    }
    _ = try? Certificate.PrivateKey(pemRepresentation: text)
    precondition(apus_has_errors() == 0, "an error is left")
}
