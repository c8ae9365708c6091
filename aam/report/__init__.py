"""What a person looks at: figures, pictures and pages; knows neither the model nor the learning."""
